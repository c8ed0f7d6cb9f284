"""`python -m tests.gpu.kernels --out DIR`: are the Triton kernels' bits right on this GPU, and how fast are they?

For people with an NVIDIA GPU; a minute. First a gate of random cases, from VRAM and in place from pinned
memory, against the definition in torch and the C++ library; speeds come only if every bit is right. Knows no kernel.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from strata.kernels.launch_shapes import ROW_BUCKETS
from tests.gpu.cases import ARENA_BYTES, Case, Recipe, bits_equal, recipes
from tests.gpu.native_twin import NativeTwin, start_build

COMPILERS = 14
COMPILED_BY_S = 90.0  # seconds after the start; what is missing then is compiled where it is used
CLOCK = time.monotonic()


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - CLOCK:6.1f} s] {text}", flush=True)


def compile_share(share: int, shares: int, is_smoke: bool) -> list[str]:
    """In a process of its own: run every kernel of a share once on tiny inputs, so that it lands in Triton's cache.

    What failed comes back as sentences; the gate meets it again.
    """
    from tests.gpu.warm import speed_kernels
    from tests.kernels.row_counts import warm_up

    jobs = [partial(run_tiny, recipe) for recipe in recipes(is_smoke)] + speed_kernels(is_smoke)
    jobs += [partial(warm_up, torch.device("cuda"), (rows,)) for rows in ROW_BUCKETS]
    failed = []
    for job in jobs[share::shares]:
        try:
            job()
        except Exception as reason:
            failed.append(f"{job}: {type(reason).__name__}: {reason}"[-400:])
    torch.cuda.synchronize()
    return failed


def run_tiny(recipe: Recipe) -> None:
    """The smallest case of a recipe."""
    recipe.make(0, 64).on_gpu(torch.empty(4 << 20, dtype=torch.uint8, pin_memory=True))


@dataclass(frozen=True)
class Prepared:
    """A case and the bits that it must give."""

    number: int
    recipe: Recipe
    case: Case
    expected: torch.Tensor


def prepare(chosen: list[Recipe], count: int, budget_s: float) -> list[Prepared]:
    """Cases with what the definition makes of them, as many as fit the time."""
    ready: list[Prepared] = []
    end = time.monotonic() + budget_s
    for number in range(count):
        if time.monotonic() > end:
            break
        case = chosen[number % len(chosen)].make(number)
        ready.append(Prepared(number, chosen[number % len(chosen)], case, case.expected()))
    return ready


def compare_native(ready: list[Prepared], twin: NativeTwin, budget_s: float) -> dict[str, int]:
    """How many cases the C++ library computed in the time, and how many of them with other bits."""
    compared = differing = 0
    end = time.monotonic() + budget_s
    for each in ready:
        if time.monotonic() > end:
            break
        compared += 1
        try:
            is_equal = bits_equal(each.case.native(twin), each.expected)
        except AssertionError as reason:
            say(f"case {each.number}: {reason}")
            is_equal = False
        differing += not is_equal
    return {"compared": compared, "differing": differing}


def gate(ready: list[Prepared]) -> list[dict[str, object]]:
    """Run the cases on the GPU; those whose bits differ."""
    arena = torch.empty(ARENA_BYTES, dtype=torch.uint8, pin_memory=True)
    wrong: list[dict[str, object]] = []
    for each in ready:
        recipe, expected = each.recipe, each.expected
        try:
            found = each.case.on_gpu(arena)
        except Exception as reason:  # a kernel that does not compile is one wrong case, not the end of the run
            wrong.append({"case": each.number, "recipe": str(recipe)[:200], "error": str(reason)[-300:]})
            continue
        if not bits_equal(found, expected):
            off = (found.view(torch.int32) != expected.view(torch.int32)).float().mean().item()
            error = ((found - expected).norm() / expected.norm()).item()
            wrong.append({"case": each.number, "recipe": str(recipe), "share_of_bits": off, "relative_error": error})
    return wrong


def late_compilations() -> list[str]:
    """What compiles once every bucket of rows has run: nothing may."""
    from tests.gpu.late_compilations import compilations_after_warm_up

    found = compilations_after_warm_up(torch.device("cuda"))
    say(f"compiled after the warm-up: {found or 'nothing'}")
    return found


def speeds(budget_s: float, report: dict[str, object], is_smoke: bool) -> Iterator[dict[str, object]]:
    """Lines of the table, until the time is over."""
    from tests.gpu.floors import Rates
    from tests.gpu.speeds import MIXTURES, dense_speeds, expert_speeds, in_place_speeds
    from tests.gpu.timing import device_rates_gb_per_s, host_rates_gb_per_s

    end = time.monotonic() + budget_s
    arena = torch.empty(ARENA_BYTES * 8, dtype=torch.uint8, pin_memory=True)
    copied, read = device_rates_gb_per_s()
    host_copied, host_read = host_rates_gb_per_s(arena)
    ceilings = {"device copy": copied, "device read": read, "copy from host": host_copied, "read in place": host_read}
    report["ceilings_gb_per_s"] = ceilings
    for name, rate in ceilings.items():
        say(f"{name}: {rate:.1f} GB/s")
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rates, link = Rates.of(read, multiprocessors), Rates.of(host_read, multiprocessors)
    groups = (
        expert_speeds(rates, MIXTURES[:1] if is_smoke else MIXTURES),
        in_place_speeds(arena, link),
        dense_speeds(rates, ((2560, 6144),)) if is_smoke else dense_speeds(rates),
    )
    for lines in groups:
        for line in lines:
            print(line, flush=True)
            yield line.as_dict()
            if time.monotonic() > end:
                say("the time for speeds is over")
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder for kernels.json")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--gate-seconds", type=float, default=30.0, help="for preparing cases")
    parser.add_argument("--seconds", type=float, default=150.0, help="for everything: speeds stop there")
    parser.add_argument("--smoke", action="store_true", help="three kinds, forty cases, few speeds")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no NVIDIA GPU here: the interpreter checks the same kernels, see `make interpreter`")
        return 2
    report: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    chosen = recipes(options.smoke)
    count = min(options.cases, 40) if options.smoke else options.cases
    shares = max(1, min(COMPILERS, (os.cpu_count() or 2) - 2))
    build = start_build()
    with multiprocessing.get_context("spawn").Pool(shares) as compilers:
        compiled = [compilers.apply_async(compile_share, (share, shares, options.smoke)) for share in range(shares)]
        torch.set_num_threads(2)
        ready = prepare(chosen, count, options.gate_seconds)
        say(f"{len(ready)} cases prepared")
        twin, report["native"] = NativeTwin.open(build)
        native = compare_native(ready, twin, 10.0) if twin else {"compared": 0, "differing": 0}
        say(f"C++ ({report['native']}) against the definition: {native}")
        for share, result in enumerate(compiled):
            try:
                failed = result.get(timeout=max(1.0, COMPILED_BY_S - (time.monotonic() - CLOCK)))
            except multiprocessing.TimeoutError:  # what is missing is compiled where it is used
                failed = ["took too long"]
            for sentence in failed:
                say(f"compiling share {share}: {sentence}")
    say(f"{len(chosen)} recipes compiled")
    wrong = gate(ready)
    report |= {"cases": len(ready), "wrong": wrong, "native_compared": native}
    say(f"gate: {len(ready) - len(wrong)} of {len(ready)} cases bit-equal on {report['gpu']}")
    for line in wrong[:20]:
        print(line)
    report["compiled_after_warm_up"] = compiled_late = late_compilations()
    lines: list[dict[str, object]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        if not wrong:
            left = options.seconds - (time.monotonic() - CLOCK)
            lines.extend(speeds(left, report, options.smoke))
    finally:
        report |= {"speeds": lines, "seconds": time.monotonic() - CLOCK}
        (options.out / "kernels.json").write_text(json.dumps(report, indent=1))
    say(f"written: {options.out / 'kernels.json'}")
    return 1 if wrong or native["differing"] or compiled_late else 0


if __name__ == "__main__":
    sys.exit(main())
