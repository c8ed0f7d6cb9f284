"""Faults of experts in tiers: a pool that stops, one that does not answer, a process that ends in the middle.

`python -m tests.gpu.tier_faults DEVICE WAIT TURNS` is that process: windows while seats change, behind the first turn
`ready` and the bytes of the card that it holds for nothing; TURNS 0 goes on until somebody ends it. WAIT: what waits
for the CPU, spin or stream. Knows processes and clocks; a check returns a line or raises AssertionError.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from strata.engine.graphs import WindowGraphs
from strata.engine.stage import RowsPart, Variant
from strata.errors import DeviceLostError
from strata.native.pool import Pool
from tests.engine.tiered_stages import Tiering
from tests.experts.busy_pool import stick
from tests.gpu.tier_checks import Check, difference, swapping, wanted_of, windows_of
from tests.gpu.tier_models import in_tiers, new_stage

MODEL = "qwen3_moe-code8"
LIMIT_S = 0.5  # of an answer
STUCK_S = 2.5
SLACK_S = 5.0  # others use this PC too
START_S, END_S = 120.0, 15.0  # of a process
BALLAST_SHARE = 0.1  # of the card's memory that a process holds for nothing, so that its end is seen there
ENDS = ((signal.SIGKILL, "spin"), (signal.SIGKILL, "stream"), (signal.SIGINT, "spin"), (signal.SIGINT, "stream"))


def checks_of(device: torch.device) -> Iterator[tuple[str, Check]]:
    """All, one after another."""
    for in_stream in (False, True):
        who = "the stream" if in_stream else "a kernel"
        yield f"the pool is stopped while {who} waits", partial(stopped, device, waits_in_stream=in_stream)
        yield f"the pool does not answer, {who} waits", partial(unanswered, device, waits_in_stream=in_stream)
    yield "processes end between windows and swaps", partial(ended, device)


def stopped(device: torch.device, *, waits_in_stream: bool) -> str:
    """A window that waits is let go at once by a stop from another thread, and is told to be lost."""
    waited = _lost_window(device, waits_in_stream, words="were stopped", stop_after_s=0.3)
    assert waited < STUCK_S - 0.5, f"the window ended after {waited:.2f} s, with the pool and not with the stop"
    return f"the window ended after {waited:.2f} s, the device answers"


def unanswered(device: torch.device, *, waits_in_stream: bool) -> str:
    """A window that waits is let go within the limit, and is told to be lost."""
    waited = _lost_window(device, waits_in_stream, words="gave no answer", limit_s=LIMIT_S)
    assert LIMIT_S * 0.9 <= waited < STUCK_S - 0.5, f"the window ended after {waited:.2f} s, the limit is {LIMIT_S} s"
    return f"the window ended after {waited:.2f} s, the device answers"


def ended(device: torch.device) -> str:
    """Processes get signals; each time the card's memory is free again, and behind all another process runs as it
    should."""
    told = []
    with ExitStack() as running:
        children = [running.enter_context(_process(device, wait, turns=0)) for _, wait in ENDS]
        ballast = [_bytes_when_ready(child) for child in children]
        for (number, wait), child, size in zip(ENDS, children, ballast, strict=True):
            before, begin = _free_bytes(device), time.monotonic()
            child.send_signal(number)
            code = child.wait(END_S)
            assert code == -number, f"{wait}: the process ended with {code} and not by {number.name}"
            _wait_for_memory(before + size // 2, device)
            told.append(f"{number.name} with {wait} {time.monotonic() - begin:.1f} s")
    with _process(device, "spin", turns=1) as child:
        output, _ = child.communicate(timeout=START_S)
    assert child.returncode == 0, f"the next process ended with {child.returncode}: {output[-1500:]}"
    return f"until {ballast[0] / 2**30:.1f} GiB were free again: {', '.join(told)}; the next process runs"


def _lost_window(
    device: torch.device, waits_in_stream: bool, words: str, limit_s: float = 30.0, stop_after_s: float | None = None
) -> float:
    """Seconds of a window whose experts nobody computes, until it has ended on the device."""
    with (
        Pool(2) as pool,
        in_tiers(MODEL, Tiering(0.0), pool, device, limit_s, waits_in_stream=waits_in_stream) as found,
    ):
        stage = new_stage(found.model)
        run = WindowGraphs(stage).run
        stage.set_rows(1, [RowsPart(0, 0, [5])])
        stage.wait()
        stuck = stick(pool, STUCK_S)
        found.tiers.windows[0].launched()
        begin = time.monotonic()
        stopper = threading.Timer(stop_after_s or 0, found.tiers.stop)
        if stop_after_s is not None:
            stopper.start()
        run(Variant.FORWARD, 1)
        stage.wait()
        waited = time.monotonic() - begin
        try:
            found.tiers.windows[0].landed()
        except DeviceLostError as lost:
            assert words in str(lost), str(lost)
        else:
            raise AssertionError("the window was taken as if its experts had been computed")
        _require_answer(device)
        stuck.join()
    return waited


def _require_answer(device: torch.device) -> None:
    """Raises AssertionError if the device does not end new work, as one on which a kernel spins."""
    if device.type == "cpu":
        return
    ended = torch.cuda.Event()
    torch.ones(1 << 20, device=device).sum()
    ended.record()
    limit = time.monotonic() + SLACK_S
    while not ended.query():
        assert time.monotonic() < limit, f"new work has not ended in {SLACK_S} s: something spins on the device"
        time.sleep(0.01)


@contextmanager
def _process(device: torch.device, wait: str, turns: int) -> Iterator["subprocess.Popen[str]"]:
    """The process of `main`, which does not outlive the block."""
    command = [sys.executable, "-m", "tests.gpu.tier_faults", str(device), wait, str(turns)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _bytes_when_ready(child: "subprocess.Popen[str]") -> int:
    """Raises AssertionError with what it said if it ends before, or is not ready in time."""
    assert child.stdout is not None
    watch = threading.Timer(START_S, child.kill)
    watch.start()
    lines = []
    for line in child.stdout:
        lines.append(line)
        if line.startswith("ready "):
            watch.cancel()
            return int(line.split()[1])
    watch.cancel()
    raise AssertionError(f"the process ended before it was ready: {''.join(lines)[-1500:]}")


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _wait_for_memory(wanted: int, device: torch.device) -> None:
    """Raises AssertionError if the card does not have so many bytes free in time."""
    limit = time.monotonic() + END_S
    while _free_bytes(device) < wanted:
        assert time.monotonic() < limit, f"{_free_bytes(device):,} bytes are free, {wanted:,} were expected"
        time.sleep(0.05)


def main() -> int:
    """See the module; 1 if a turn gives other bits than windows with every expert on the device."""
    device, waits_in_stream, turns = torch.device(sys.argv[1]), sys.argv[2] == "stream", int(sys.argv[3])
    torch.set_num_threads(1)
    if device.type == "cuda":
        from strata.kernels.compiled import settle_keys

        settle_keys()
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0
    ballast = torch.empty(int(memory * BALLAST_SHARE), dtype=torch.uint8, device=device)
    wanted = wanted_of(MODEL, device)
    tiering = Tiering(0.5, 0.3)
    with Pool(2) as pool, in_tiers(MODEL, tiering, pool, device, waits_in_stream=waits_in_stream) as found:
        stage = new_stage(found.model)
        run, turn = WindowGraphs(stage).run, 0
        with swapping(found, device) as swapper:
            while turns == 0 or turn < turns:
                wrong = difference(windows_of(stage, run), wanted)
                if wrong:
                    print(wrong)
                    return 1
                turn += 1
                if turn == 1:
                    assert swapper.swaps > 0, "no expert has changed its seat"
                    print(f"ready {ballast.numel()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
