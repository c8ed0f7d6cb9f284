"""`python -m tests.gpu.windows --out DIR`: do decode windows on this GPU give what they must, and how fast are they?

For people with an NVIDIA GPU; at most six minutes. In this order, and a failure stops nothing: every case of
tests/gpu/window_ops in many processes (which also compiles what the models need), whole windows of tiny models of all
families and of four published layers, the ops' speeds, the window's. Everything lands in windows.json and windows.log.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.gpu.native_twin import BUILD, start_build
from tests.gpu.window_models import CUDA, EVERY_BUCKET, PUBLISHED, TINY

OPS = Path(__file__).parent / "window_ops"
TASK_SECONDS = 190.0
CHECK_SECONDS = 285.0  # since the start; no check of a model is begun later
SPEED_SECONDS = 340.0
STAGE_SHARES = {PUBLISHED: 5, EVERY_BUCKET: 4}
OP_SHARES = {"attention_rows": 4, "expert_rows": 6, "packed_rows": 6, "sampler": 3, "stream_gates": 4}
CLOCK = time.monotonic()


class Report:
    """What was found so far, on the screen, in the log and in the JSON file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.values: dict[str, Any] = {"failed": [], "checks": {}, "speeds": []}
        self._log = (folder / "windows.log").open("w")

    def say(self, text: str) -> None:
        """A line with the seconds since the start."""
        line = f"[{time.monotonic() - CLOCK:6.1f} s] {text}"
        print(line, flush=True)
        self._log.write(line + "\n")
        self._log.flush()

    def fail(self, where: str, text: str) -> None:
        """A failure: its first lines here, all of it in the files."""
        self.values["failed"].append({"where": where, "text": text})
        self.say(f"FAILED {where}\n{text}")
        self.write()

    def sum_up(self) -> None:
        """One line for each failure: the last of its text."""
        for failure in self.values["failed"]:
            lines = failure["text"].strip().splitlines() or [""]
            self.say(f"FAILED {failure['where'][:110]}: {lines[-1][:200]}")
        self.say(f"{len(self.values['failed'])} failures; written: {self.folder / 'windows.json'}")

    def write(self) -> None:
        """The JSON file as it would be if nothing came any more."""
        self.values["seconds"] = time.monotonic() - CLOCK
        (self.folder / "windows.json").write_text(json.dumps(self.values, indent=1, default=str))


def op_names() -> list[str]:
    """The ops that bring cases."""
    return sorted(path.stem for path in OPS.glob("*.py") if path.stem != "__init__")


def run_tasks(report: Report, chosen: list[str], models: list[str]) -> None:
    """Every case of the ops and every launch of the models, in many processes."""
    from tests.gpu.window_tasks import Tasks

    shares = [("op", op, OP_SHARES.get(op, 2)) for op in chosen]
    shares += [("stage", model, STAGE_SHARES.get(model, 1)) for model in models]
    names = [f"{kind}:{name}:{share}/{count}" for kind, name, count in shares for share in range(count)]
    outcomes = Tasks(names, report.folder / "tasks").run(TASK_SECONDS, report.say)
    report.values["steps"] = [asdict(outcome) | {"text": outcome.text[-400:]} for outcome in outcomes]
    failed = [outcome for outcome in outcomes if not outcome.passed]
    report.say(f"{len(outcomes) - len(failed)} of {len(outcomes)} steps passed in {len(names)} tasks")
    known: dict[str, int] = {}
    for outcome in failed:
        last = outcome.text.strip().splitlines()[-1] if outcome.text.strip() else ""
        known[last] = known.get(last, 0) + 1
        if known[last] <= 2:  # the same error in many cases is told twice
            report.fail(f"{outcome.task}: {outcome.name}", outcome.text)
    for sentence, times in known.items():
        if times > 2:
            report.say(f"{times} times in all: {sentence}")


def check_models(report: Report, models: list[str], device: torch.device) -> None:
    """Every check of every model."""
    from strata.kernels.compiled import noting_compilations
    from tests.gpu.window_checks import Subject, checks_of

    for name in models:
        if time.monotonic() - CLOCK > CHECK_SECONDS:
            report.fail(name, "not checked: the time was over")
            continue
        found = report.values["checks"].setdefault(name, {})
        begun = time.monotonic()
        try:
            with noting_compilations() as noted:
                subject = Subject.open(name, device)
        except Exception:
            report.fail(f"{name}: opening", traceback.format_exc())
            continue
        found["opening"] = {"compiled here": noted.compiled, "fetched": len(noted.fetched)}
        report.say(
            f"{name}: opened in {time.monotonic() - begun:.1f} s, {len(noted.fetched)} kernels fetched, "
            f"{len(noted.compiled)} compiled here {sorted(set(noted.compiled))}"
        )
        for what, check in checks_of(subject):
            begun = time.monotonic()
            try:
                found[what] = check()
                report.say(f"{name}: {what}: {_numbers(found[what])} ({time.monotonic() - begun:.1f} s)")
            except Exception:
                report.fail(f"{name}: {what}", traceback.format_exc())
        del subject
        report.write()


def check_precompile(report: Report) -> None:
    """`strata kernels --precompile` into an empty folder; a process that starts with it compiles nothing."""
    from strata.engine.compile_share import CompileRequest
    from strata.engine.precompile import precompile
    from tests.gpu.tiny_models import directory
    from tests.gpu.warm_start import PRECOMPILED, SLOTS

    family, choice = PRECOMPILED
    cache = report.folder / "kernel-cache"
    shutil.rmtree(cache, ignore_errors=True)
    request = CompileRequest(directory(family), choice, SLOTS, 0, 0, cache.resolve())
    begun = time.monotonic()
    count = precompile(request, min(14, os.cpu_count() or 1), lambda *told: report.say(f"{told}"))
    report.say(f"precompiled {count} kernels in {time.monotonic() - begun:.1f} s")
    command = [sys.executable, "-m", "tests.gpu.warm_start", str(cache.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = f"a process with this folder: {done.stdout.strip()} {done.stderr.strip()[-2000:]}"
    if done.returncode:
        report.fail("precompile", told)
    else:
        report.say(told)


def op_speeds(report: Report, chosen: list[str]) -> None:
    """What the ops move and how fast, by replayed graphs."""
    from importlib import import_module

    from tests.gpu.timing import device_rates_gb_per_s, seconds

    copied, read = device_rates_gb_per_s(1 << 30)
    report.values["ceilings_gb_per_s"] = {"copy": copied, "read": read}
    report.say(f"device memory: copy {copied:.0f} GB/s, read {read:.0f} GB/s")
    for op in chosen:
        module = import_module(f"tests.gpu.window_ops.{op}")
        try:
            for name, launch, size in module.speeds(CUDA):
                if time.monotonic() - CLOCK > SPEED_SECONDS:
                    report.say("the time for speeds is over")
                    return
                taken, spread = seconds([launch])
                line = {"op": op, "what": name, "us": taken * 1e6, "spread": spread, "gb_per_s": size / taken / 1e9}
                report.values["speeds"].append(line)
                rate = line["gb_per_s"]
                report.say(f"{op:18} {name:48} {taken * 1e6:8.1f} us +-{spread * 50:2.0f} % {rate:7.0f} GB/s")
        except Exception:
            report.fail(f"speeds of {op}", traceback.format_exc())


def window_speeds(report: Report) -> None:
    """Time, kernels and steps of a window of the published layers."""
    from strata.bench.kernel_profile import profile_kernels
    from strata.engine.stage import Variant
    from strata.engine.stage_profile import StageProfile
    from strata.kernels.sampler.plan import PlannedPart
    from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
    from tests.gpu.window_checks import PREFIXES, Subject

    subject = Subject.open(PUBLISHED, CUDA)
    stage, profile = subject.stage, StageProfile(subject.stage)
    for bucket in (1, 4, 8, 32):
        slots = min(bucket, stage.sizes.slots)
        drafts = bucket // slots - 1
        for slot in range(slots):
            stage.set_reply(slot, ReplyStart(PREFIXES[2] + 4000, 1 + slot, 1 << 20, (), ChoiceOptions()))
        stage.set_plan(1, [PlannedPart(slot, (5,) * drafts) for slot in range(slots)])
        times = sorted(_replay_seconds(subject, bucket) for _ in range(30))
        kernels = profile_kernels(partial(subject.run, Variant.UNFILTERED_WINDOW, bucket), 4)
        own = sum(kernel.microseconds for kernel in kernels)
        count = sum(kernel.launches for kernel in kernels)
        told = f"{times[15] * 1e6:.1f} us, {count:.0f} kernels of {own:.1f} us"
        report.say(f"window of {bucket} rows, 4 published layers: {told}")
        for kernel in kernels[:40]:
            report.say(f"    {kernel.microseconds:8.1f} us in {kernel.launches:5.1f} launches: {kernel.name[:90]}")
        for _ in range(4):
            profile.run(Variant.UNFILTERED_WINDOW, bucket)
        found = report.values.setdefault("windows", {})
        found[bucket] = {
            "us": times[15] * 1e6,
            "kernels": count,
            "kernels_us": own,
            "each": [asdict(k) for k in kernels],
        }
    for line in profile.as_lines():
        report.say(line)


def _replay_seconds(subject: Any, bucket: int) -> float:
    from strata.engine.stage import Variant

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    subject.run(Variant.UNFILTERED_WINDOW, bucket)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _numbers(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.2e}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder for windows.json and windows.log")
    parser.add_argument("--ops", nargs="*", help="only these ops")
    parser.add_argument("--models", nargs="*", help="only these models")
    parser.add_argument("--no-tasks", action="store_true", help="leave the ops' cases out")
    parser.add_argument("--no-speeds", action="store_true")
    parser.add_argument("--precompile", action="store_true", help="also compile into an empty folder and start with it")
    parser.add_argument(
        "--no-dependent", action="store_true", help="models and speeds without kernels that start early"
    )
    parser.add_argument(
        "--on-cpu", action="store_true", help="check the checks: twins on both sides, no ops, no speeds"
    )
    options = parser.parse_args()
    report = Report(options.out)
    models = options.models if options.models is not None else [*TINY, PUBLISHED]
    if options.on_cpu:
        check_models(report, [name for name in models if name != PUBLISHED], torch.device("cpu"))
        return 1 if report.values["failed"] else 0
    if not torch.cuda.is_available():
        print("no NVIDIA GPU here: the interpreter checks the same kernels, see `make interpreter`")
        return 2
    return _run(report, options, models)


def _run(report: Report, options: argparse.Namespace, models: list[str]) -> int:
    import triton

    from strata.kernels.compiled import settle_keys
    from strata.kernels.roads import use_dependent_launches

    settle_keys()  # here as in the workers: what they compile is found here
    use_dependent_launches(not options.no_dependent)
    report.values |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    chosen = options.ops if options.ops is not None else op_names()
    report.say(
        f"{report.values['gpu']}, torch {torch.__version__}, Triton {triton.__version__}; ops: {', '.join(chosen)}"
    )
    torch.set_num_threads(2)
    build = start_build()
    if not options.no_tasks:
        run_tasks(report, chosen, models)
    report.say(f"C++ library: {_open_library(build)}")
    check_models(report, models, CUDA)
    parts: list[tuple[str, Callable[[Report], None]]] = []
    if not options.no_speeds:
        parts += [("windows' speeds", window_speeds), ("ops' speeds", partial(op_speeds, chosen=chosen))]
    if options.precompile:
        parts.append(("precompile", check_precompile))
    for what, run in parts:
        try:
            run(report)
        except Exception:
            report.fail(what, traceback.format_exc())
    report.write()
    report.sum_up()
    return 1 if report.values["failed"] else 0


def _open_library(build: "subprocess.Popen[str]") -> str:
    import strata.native
    from strata.native import library

    output, _ = build.communicate()
    if build.returncode:
        return "did not build: " + output.strip()[-500:]
    if not library.is_available():
        strata.native.__path__.append(str(BUILD))
    library.load()
    return "built and loaded"


if __name__ == "__main__":
    sys.exit(main())
