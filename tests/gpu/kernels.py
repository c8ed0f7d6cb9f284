"""`python -m tests.gpu.kernels --out DIR`: are the Triton kernels' bits right on this GPU, and how fast are they?

For people with an NVIDIA GPU; about two minutes. First a gate of random cases, from VRAM and in place from pinned
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

from tests.gpu.cases import ARENA_BYTES, Case, Recipe, bits_equal, make_case, recipes
from tests.gpu.native_twin import NativeTwin, start_build

COMPILERS = 12
COMPILED_BY_S = 70.0  # seconds after the start; what is missing then is compiled where it is used
CLOCK = time.monotonic()


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - CLOCK:6.1f} s] {text}", flush=True)


def compile_share(share: int, shares: int, is_smoke: bool) -> list[str]:
    """In a process of its own: run every kernel of a share once on tiny inputs, so that it lands in Triton's cache.

    What failed comes back as sentences; the gate meets it again.
    """
    from tests.gpu.warm import speed_kernels

    jobs = [partial(run_tiny, recipe) for recipe in recipes(is_smoke)] + speed_kernels(is_smoke)
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
    make_case(recipe, 0, 64).on_gpu(torch.empty(4 << 20, dtype=torch.uint8, pin_memory=True))


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
        case = make_case(chosen[number % len(chosen)], number)
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
            kinds = "/".join(kind.name for kind in recipe.kinds)
            off = (found.view(torch.int32) != expected.view(torch.int32)).float().mean().item()
            error = ((found - expected).norm() / expected.norm()).item()
            wrong.append(
                {"case": each.number, "kinds": kinds, "expert": recipe.is_expert, "rows_at_once": recipe.rows_at_once}
                | {"in_place": recipe.is_in_place, "share_of_bits": off, "relative_error": error}
            )
    return wrong


def speeds(budget_s: float, ceilings: dict[str, float], is_smoke: bool) -> Iterator[dict[str, object]]:
    """Lines of the table, until the time is over."""
    from tests.gpu.speeds import dense_speeds, expert_speeds, in_place_speeds
    from tests.gpu.timing import device_copy_gb_per_s, host_rates_gb_per_s

    end = time.monotonic() + budget_s
    ceilings["device copy"] = device_copy_gb_per_s()
    arena = torch.empty(ARENA_BYTES * 8, dtype=torch.uint8, pin_memory=True)
    ceilings["copy from host"], ceilings["read in place"] = host_rates_gb_per_s(arena)
    for name, rate in ceilings.items():
        say(f"{name}: {rate:.1f} GB/s")
    groups = (
        (expert_speeds((10, 40), 200) if is_smoke else expert_speeds(), "device copy"),
        (in_place_speeds(arena), "read in place"),
        (dense_speeds(((2560, 2560),)) if is_smoke else dense_speeds(), "device copy"),
    )
    for lines, ceiling in groups:
        try:
            for line in lines:
                share = line.gb_per_s / ceilings[ceiling]
                print(
                    f"{line.what:24} {line.size:22} {line.launch:34} {line.microseconds:9.1f} us "
                    f"+-{line.spread * 50:3.0f} % {line.gb_per_s:7.0f} GB/s {share * 100:4.0f} % of {ceiling}",
                    flush=True,
                )
                yield line.as_dict() | {"ceiling": ceiling, "share": share}
                if time.monotonic() > end:
                    say("the time for speeds is over")
                    return
        except Exception as reason:  # the other groups are still worth their time
            say(f"a speed could not be measured: {type(reason).__name__}: {str(reason)[-300:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder for kernels.json")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--gate-seconds", type=float, default=30.0, help="for preparing cases")
    parser.add_argument("--seconds", type=float, default=115.0, help="for everything: speeds stop there")
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
    ceilings: dict[str, float] = {}
    lines: list[dict[str, object]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        if not wrong:
            left = options.seconds - (time.monotonic() - CLOCK)
            lines.extend(speeds(left, ceilings, options.smoke))
    finally:
        report |= {"ceilings_gb_per_s": ceilings, "speeds": lines, "seconds": time.monotonic() - CLOCK}
        (options.out / "kernels.json").write_text(json.dumps(report, indent=1))
    say(f"written: {options.out / 'kernels.json'}")
    return 1 if wrong or native["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
