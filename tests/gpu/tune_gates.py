"""`python -m tests.gpu.tune_gates`: times launches of gates, norms and routes on this GPU, in about a minute.

All candidates are compiled first, by processes side by side. A candidate is a chain of launches in one graph, whose
kernels are dependents of one another, as in a window; those of the gates are `down` and `up` in turn, and read copies
that do not fit the cache. Prints each line's candidates, best first, `*` at what the product launches now: the table's
launch of `down`, `GatesLaunch.of`, and the constants REGISTERS of strata/kernels/residual_streams/triton.py and
strata/kernels/router/triton.py. "the product alone" makes no low: what is above it is the price of low. Whether the
bits are right is the gate's question. `--smoke` runs each once and times nothing.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch

from strata.kernels.launch_shapes import LaunchShape
from tests.gpu.candidates import spelled
from tests.gpu.chain_candidates import FEW, candidates
from tests.gpu.warm import compile_side_by_side
from tests.gpu.window_ops.stream_gates import HIDDEN, STREAMS, GatesChain
from tests.kernels.stream_cases import StreamSizes, additions, moved, norm_scale, room
from tests.kernels.window_cases import window_of

EXPERTS, RANKS = 512, 10
CODE = "q8_0"  # of the published model's gates
CALLS = 32  # of one graph; 32 copies of 7 MB are more than the cache of any GPU known
REPEATS = 11
REGISTERS = (None, 64, 96, 128, 255)  # most of a thread, where the product sets a limit


@dataclass(frozen=True)
class Trial:
    """One candidate: what it is called, its launches one after another, and whether the product launches it now."""

    name: str
    call: Callable[[], None]
    is_current: bool


@dataclass(frozen=True)
class Line:
    """Candidates for one kernel at some rows."""

    name: str
    rows: int
    make: Callable[[int, int, torch.device], list[Trial]]  # rows, calls, device

    def trials(self, calls: int, device: torch.device) -> list[Trial]:
        """Every candidate, as `calls` launches."""
        return self.make(self.rows, calls, device)


def gates(rows: int, calls: int, device: torch.device) -> list[Trial]:
    """Both launches: `down` by every launch that may be the best one; `up` eight rows at once, or one by one."""
    from strata.kernels.packed_rows import joined
    from strata.kernels.stream_gates.down import gates_down
    from strata.kernels.stream_gates.triton import GatesLaunch, stream_gates

    chain, name = GatesChain.of(CODE, calls), torch.cuda.get_device_name(device)
    normed, low, mixed = chain.rooms(rows, device)
    assert normed.plain is not None
    plain = normed.plain

    def call(down_launch: LaunchShape, launch: GatesLaunch, makes_low: bool = True) -> None:
        for down, up in chain.pairs:
            if makes_low:
                gates_down([down], normed, STREAMS, low, down_launch)
            else:
                joined.multiply_into([down], normed, low.shares, [down_launch])
            stream_gates(low.low, plain, up, STREAMS, mixed, launch)

    current, *others = (launches[0] for launches in candidates(FEW, name, rows))
    of_up = GatesLaunch.of(chain.pairs[0][1].layout, rows)
    return [
        Trial(spelled(current), partial(call, current, of_up), True),
        *(Trial(spelled(other), partial(call, other, of_up), False) for other in others),
        Trial("up's rows one by one", partial(call, current, GatesLaunch(1, False)), False),
        Trial("the product alone", partial(call, current, of_up, makes_low=False), False),
    ]


def norm(kind: str, rows: int, calls: int, device: torch.device) -> list[Trial]:
    """An addition of this kind and the norm, with several limits of registers."""
    from strata.kernels.residual_streams import add_and_norm, triton

    sizes = StreamSizes(rows, STREAMS, HIDDEN, RANKS)
    addition, scale = moved(additions(1, sizes)[kind], device), norm_scale(2, sizes.width).to(device)
    streams, out = torch.zeros(rows, sizes.width, device=device), room(rows, sizes.width, device, True, True)
    call = partial(add_and_norm, streams, addition, scale, 1e-6, STREAMS, out)
    return limited(triton, call, calls, most=128)


def route(rows: int, calls: int, device: torch.device) -> list[Trial]:
    """A window's routing with a shared gate, with several limits of registers."""
    from strata.kernels.router import Routes, SharedGate, route_rows, triton

    logits = torch.randn(rows, EXPERTS + 1280, device=device)[:, :EXPERTS]
    shared = SharedGate(torch.randn(rows, HIDDEN, device=device), torch.randn(HIDDEN, device=device))
    routes, window = Routes.empty(rows, RANKS, device, True), window_of([(0, rows)], rows, device=device)
    return limited(triton, partial(route_rows, logits, window, True, routes, shared), calls, most=255)


def limited(module: ModuleType, call: Callable[[], None], calls: int, most: int) -> list[Trial]:
    """The call with every limit that its number of warps allows in the place of the module's constant."""
    current = module.REGISTERS

    def many(registers: int | None) -> None:
        module.REGISTERS = registers  # type: ignore[attr-defined]
        for _ in range(calls):
            call()
        module.REGISTERS = current  # type: ignore[attr-defined]

    limits = [limit for limit in REGISTERS if limit is None or limit <= most]
    return [Trial(f"at most {limit} registers", partial(many, limit), limit == current) for limit in limits]


LINES = (
    *(Line("gates down; gates up, mix", rows, gates) for rows in (1, 2, 4, 8, 32)),
    *(
        Line(f"add {kind}, norm", rows, partial(norm, kind))
        for kind in ("mixer", "experts and gated")
        for rows in (1, 8)
    ),
    *(Line("route", rows, route) for rows in (1, 8)),
)


def run_once(line: int, trial: int) -> None:
    """One launch of a candidate, in a process that compiles it."""
    LINES[line].trials(1, torch.device("cuda"))[trial].call()


def compile_all(device: torch.device) -> None:
    """All candidates, so that the times hold no compilation."""
    counts = [len(line.trials(1, device)) for line in LINES]
    jobs = [partial(run_once, line, trial) for line, count in enumerate(counts) for trial in range(count)]
    for sentence in compile_side_by_side(jobs):
        print(f"does not compile: {sentence}", flush=True)


def microseconds(trial: Trial, is_smoke: bool) -> float:
    """Of one launch; 0 where nothing is timed."""
    if is_smoke:
        trial.call()
        return 0.0
    from tests.gpu.timing import seconds

    return seconds([trial.call], REPEATS)[0] / CALLS * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=65.0, help="no new line is timed after these")
    parser.add_argument("--smoke", action="store_true", help="runs every candidate once and times nothing")
    options = parser.parse_args()
    start, device = time.monotonic(), torch.device("cuda")
    compile_all(device)
    print(f"[{time.monotonic() - start:5.1f} s] compiled", flush=True)
    for line in LINES:
        if time.monotonic() - start > options.seconds:
            print(f"the time is over before {line.name}, {line.rows} rows")
            break
        found = line.trials(1 if options.smoke else CALLS, device)
        timed = sorted(((microseconds(trial, options.smoke), trial) for trial in found), key=lambda each: each[0])
        print(f"[{time.monotonic() - start:5.1f} s] {line.name}, {line.rows} rows")
        for us, trial in timed:
            print(f"    {us:7.2f} us {'*' if trial.is_current else ' '}{trial.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
