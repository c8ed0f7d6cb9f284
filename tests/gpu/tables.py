"""`python -m tests.gpu.tables`: do windows that ask for rows of tables in files give the bits of tables in memory?

For people with an NVIDIA GPU; a minute or two with 16 cores, most of it for compiling. A tiny model with two n-gram
tables through captured graphs, with either way to wait: logits, replies, a file that changes, readers that are stuck.
Behind them what a window takes. `--device cpu` checks the checks over torch's twins; `--kernels` keeps what compiled.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from strata.engine.compile_share import CompileRequest
from strata.engine.precompile import precompile
from strata.errors import DeviceLostError, EngineError
from strata.models.base import Segment
from strata.models.device.reading.support import chunk_problem
from tests.engine.served import ask
from tests.engine.tabled_stages import Tabled, in_memory, logits_of, published, tabled
from tests.experts.busy_pool import stick
from tests.random_text import token_ids_of

WAITS = {"spin": False, "stream": True}
TIMED_WINDOWS = 200  # on a GPU


def check_logits(device: torch.device, wait: str) -> str:
    """Reads and windows of two slots."""
    wanted = logits_of(in_memory(published(), device))
    with tabled(published(), device, waits_in_stream=WAITS[wait]) as found:
        logits = logits_of(found)
        counts = found.tables.counts()
    off = int((logits != wanted).sum())
    assert off == 0, f"{off} of {logits.numel()} logits differ"
    return f"{counts.requests} requests, {counts.rows} rows"


def check_chunks(device: torch.device, wait: str) -> str:
    """A prompt of more rows than are asked for at once, layer by layer, and a window between two layers."""
    text, logits = torch.arange(530) * 7 % 96, []
    with tabled(published(), device, waits_in_stream=WAITS[wait]) as found:
        problem = chunk_problem(found.description)
        if problem is not None:
            return f"nothing to check, because {problem}"
        for each in (in_memory(published(), device), found):
            model = each.model(chunk_rows=576)
            reading, other = model.begin_read(Segment(model.new_state(), text)), model.new_state()
            while not reading.advance():
                window = model.window([Segment(other, torch.tensor([3]))])
                model.commit(window, [1])
            logits.append(torch.cat((reading.finish().logits, window.output.logits)))
    off = int((logits[0] != logits[1]).sum())
    assert off == 0, f"{off} of {logits[0].numel()} logits differ"
    return f"{len(text)} rows"


def check_replies(device: torch.device, wait: str) -> str:
    """Two at once, one window ahead."""
    requests = [ask(token_ids_of(34, 1), 20), ask(token_ids_of(3, 2), 25, temperature=0.9, seed=3)]
    replies = []
    with tabled(published(), device, waits_in_stream=WAITS[wait]) as found:
        for model in (in_memory(published(), device), found):
            served = model.served(is_ahead=True)
            for number, request in enumerate(requests):
                served.submit(number, request)
            served.finish()
            replies.append(served.replies)
    assert replies[0] == replies[1], f"{replies[1]} instead of {replies[0]}"
    return f"{sum(map(len, replies[0].values()))} tokens"


def check_changed_file(device: torch.device, wait: str) -> str:
    """A file that changes ends what asked for it; as it was again, the next request is answered."""
    request = ask(token_ids_of(3, 2), 12)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(published(), Path(folder, "model")))
        (file,) = path.glob("*.safetensors")
        with tabled(path, device, waits_in_stream=WAITS[wait]) as found:
            served = found.served(is_ahead=True)
            wanted = served.ask(request)
            times = file.stat()
            served.submit(1, request)
            while len(served.replies[1]) < 2:
                served.turn()
            os.utime(file, ns=(0, 0))
            served.finish()
            told = served.ends[1].error or ""
            assert f"{file.name} has changed since" in told, told
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            assert served.ask(request) == wanted
    return told


def check_stuck_readers(device: torch.device, wait: str) -> str:
    """Windows that wait for readers which do something else are let go, and nothing runs on."""
    with tabled(published(), device, limit_s=0.5, waits_in_stream=WAITS[wait]) as found:
        model = found.model()
        state = model.new_state()
        model.read([Segment(state, torch.arange(5))])
        stuck = stick(found.tables.readers, 2.0)
        begin = time.perf_counter()
        try:
            model.window([Segment(state, torch.tensor([3]))])
        except DeviceLostError as lost:
            told = str(lost)
        else:
            raise AssertionError("nobody was told")
        seconds = time.perf_counter() - begin
        stuck.join()
    assert seconds < 5, f"it took {seconds:.1f} s"
    return f"{told[:100]}... behind {seconds:.1f} s"


def speeds(device: torch.device) -> None:
    """A window of one row and of 32, host and device together: with tables in memory, and in files with each wait."""
    for rows in (1, 32):
        line = [f"{rows} rows: in memory {_window_us(in_memory(published(), device), rows):.1f} us"]
        for wait, waits_in_stream in WAITS.items():
            with tabled(published(), device, waits_in_stream=waits_in_stream) as found:
                took, before = _window_us(found, rows), found.tables.counts()
                busy = before.busy_ns / before.requests / 1e3
                line.append(f"in files, {wait} {took:.1f} us (the readers {busy:.1f} us a table)")
        print(", ".join(line), flush=True)


def _window_us(found: Tabled, rows: int) -> float:
    model = found.model()
    segments = [Segment(model.new_state(), torch.arange(rows) % 96)]
    count = TIMED_WINDOWS if model.stage.device.type == "cuda" else 2
    took = []
    for _ in range(count):
        begin = time.perf_counter()
        model.window(segments)
        took.append(time.perf_counter() - begin)
    return sorted(took)[count // 2] * 1e6


def run(checks: Sequence[tuple[str, Callable[[], str]]]) -> int:
    """A line each; how many failed."""
    failed = 0
    for name, check in checks:
        try:
            print(f"passed {name}: {check()}", flush=True)
        except (AssertionError, EngineError, RuntimeError):
            failed += 1
            print(f"FAILED {name}: {traceback.format_exc()}", flush=True)
    return failed


def compile_all(device: torch.device, kernels: Path) -> None:
    """What the windows of a table in files launch, in many processes; the few that are left compile as they come."""
    from strata.kernels.compiled import use_cache

    use_cache(kernels)
    begin, slots = time.perf_counter(), 2
    request = CompileRequest(published(), "code8", slots, 0, device.index, kernels, reads_tables=True)
    count = precompile(request, max(1, (os.cpu_count() or 2) - 1))
    print(f"{count} kernels compiled or found in {time.perf_counter() - begin:.0f} s", flush=True)


def main() -> int:
    """The number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", help="folder of compiled kernels; not given: one that is deleted")
    parser.add_argument("--chunks", action="store_true", help="prompts in chunks too, whose kernels compile one by one")
    options = parser.parse_args()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
            compile_all(device, Path(options.kernels or folder))
        return check_all(device, with_chunks=options.chunks)


def check_all(device: torch.device, *, with_chunks: bool) -> int:
    """The number of failures."""
    every = {
        "logits": check_logits,
        "replies": check_replies,
        "a file that changes": check_changed_file,
        "readers that are stuck": check_stuck_readers,
    }
    if with_chunks:
        every["prompts in chunks"] = check_chunks
    failed = run([(f"{name}, {wait}", partial(check, device, wait)) for name, check in every.items() for wait in WAITS])
    if not failed:
        speeds(device)
    return failed


if __name__ == "__main__":
    sys.exit(main())
