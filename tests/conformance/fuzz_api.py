"""Requests that schemathesis makes from our OpenAPI document, against a real engine: no crash and no 5xx.

Knows schemathesis as a program (extra `conformance`) and `strata serve` as a process.
"""

import re
import subprocess
import sys
import time

from tests.conformance.table import Row
from tests.server.serving import Serving, serving

CHECKS = "not_a_server_error,content_type_conformance"


def fuzz_api(seconds: float) -> Row:
    """Fuzz for so long."""
    name = f"schemathesis on our OpenAPI, {seconds:.0f} s"
    with serving("--slots", "4", "--context", "256", "--max-body-mib", "1") as server:
        server.until_ready()
        sent, failures, output = _run(server, seconds)
        pid = server.engine_pid()
        restarts = server.ask("GET", "/strata/status")[1]["restarts"]
        works = server.ask("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 4})[0] == 200
        bugs = [line for line in server.err if '"bug"' in line]
    is_kept = sent > 0 and failures == 0 and restarts == 0 and not bugs and works and pid is not None
    if not is_kept:
        print(output[-6000:], "\n".join(bugs), file=sys.stderr)
    return Row(
        name, "0 crashes, 0 5xx", f"{sent} requests, {failures} 5xx, {restarts} crashes, {len(bugs)} bugs", is_kept
    )


def _run(server: Serving, seconds: float) -> tuple[int, int, str]:
    """Requests sent, answers of 500 and more, what the program printed; rounds with new seeds until time is over."""
    began = time.monotonic()
    before = len(server.err)
    output, seed = "", 0
    while (left := seconds - (time.monotonic() - began)) > 1:
        seed += 1
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", CHECKS,
            "--seed", str(seed), "--max-examples", "50", "--phases", "examples,coverage,fuzzing",
            "--continue-on-failure", "--request-timeout", "60", "--no-color",
            "--exclude-path", "/strata/events",
        ]  # fmt: skip
        try:
            output += subprocess.run(command, capture_output=True, text=True, timeout=left).stdout
        except subprocess.TimeoutExpired as over:
            output += (over.stdout or b"").decode("utf-8", "replace") if isinstance(over.stdout, bytes) else ""
            break
    lines = server.err[before:]
    statuses = [int(found.group(1)) for line in lines if (found := re.search(r'"status": (\d+)', line))]
    return len(statuses), sum(status >= 500 for status in statuses), output
