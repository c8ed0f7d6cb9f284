"""The peer's process: reads one JSON command a line, runs llama.cpp, answers with one JSON line.

Started by `peer_process.py` with `python -m strata.bench.peer_worker START`, a `PeerStart` as JSON; knows no other
engine.
"""

import json
import sys
import time
from typing import Any

from strata.bench.llama_cpp import LlamaCppModel
from strata.bench.peer_process import PeerStart
from strata.errors import StrataError


def run_round(model: LlamaCppModel, prompt: list[int], follow: list[int]) -> dict[str, Any]:
    """Read a prompt, then the following tokens one by one; seconds of both and the logits of the prompt's last row."""
    model.clear()
    begin = time.perf_counter()
    logits = model.read(prompt)
    middle = time.perf_counter()
    for token_id in follow:
        model.read([token_id])
    return {
        "read_seconds": middle - begin,
        "decode_seconds": time.perf_counter() - middle,
        "logits": [round(float(value), 5) for value in logits[0]],
    }


def main() -> int:
    """Answer commands until stdin ends."""
    start = PeerStart.from_json(sys.argv[1])
    try:
        size = start.threads, start.context
        model = LlamaCppModel(start.file, *size, placement=start.placement, batch_rows=start.batch_rows)
    except StrataError as failure:
        print(json.dumps({"error": str(failure)}), flush=True)
        return 1
    print(json.dumps({"vocabulary_size": model.vocabulary_size}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["threads"] is not None:
            model.set_threads(command["threads"])
        try:
            answer = run_round(model, command["prompt"], command["follow"])
        except StrataError as failure:
            answer = {"error": str(failure)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
