"""Stands in for `strata.engine.compile_share`: `python fake_compiler.py HOW` answers jobs without a card.

Knows lines alone. HOW: `well`, `badly` (every share has a failure), `dying` (ends at share 1), `never` (no answer).
"""

import json
import sys
import time

how = sys.argv[1]
for line in sys.stdin:
    request, share, shares = json.loads(line)
    if how == "dying" and share == 1:
        sys.exit(3)
    if how == "never":
        time.sleep(600)
    failures = [f"{request['model']}, share {share} of {shares}: no"] if how == "badly" else []
    print(json.dumps({"kernels": 2, "failures": failures}), flush=True)
