"""`python -m tests.gpu.stages`: does a model cut into stages give the bits of one stage here, and what does a cut cost?

For people with an NVIDIA GPU, better two; below two minutes, most of it compiling. On one card both stages lie on it;
where there are two a model also lies on both; windows cross in every way. Through captured graphs: tokens with right
and wrong drafts, logits of the host's windows, all state, two groups of slots beside each other; then times of windows
of four published layers. `--device cpu` runs the checks over torch's twins.
"""

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from strata.bench.synthetic_model import synthetic_config
from strata.engine.chain import ChainWays, MakeWay, StageChain
from strata.engine.chain_stage import WindowStage
from strata.engine.graphs import WindowGraphs, wanted_graphs
from strata.engine.group_roads import GroupRoads
from strata.engine.hand_off import HandOff, Way, hand_off_between, pass_on
from strata.engine.local_stage import LocalStage, RunStage, on_device
from strata.engine.stage import Stage
from strata.engine.stage_programs import Variant
from strata.engine.window_copy import through_memory, window_way
from strata.kernels.compiled import settle_keys
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.description import DeviceModel
from strata.models.device.layer_split import LayerSplit
from strata.models.device.split_weights import PlacedWeights, SplitWeights
from strata.models.device.synthetic import SyntheticForm, SyntheticWeights
from strata.models.device.weights import DeviceWeights
from strata.models.families import family_of
from strata.weights.presets import STYLES
from tests.engine.chained_stages import (
    BUCKETS,
    MOST,
    SIZES,
    begin_replies,
    every_window,
    next_tokens,
    run_window,
    states_of,
)
from tests.gpu.tiny_models import tiny_model

PUBLISHED = "published"  # four layers of qwen4_exp: three delta nets, one of them with n-grams, and one attention
CUTS = {"qwen4_exp-none": (1, 3), "llama-code4": (1,), PUBLISHED: (2,)}
GROUP_WINDOWS, TIMED_WINDOWS = 6, 40
COMPILED_SHARES = 6  # of a model
Devices = tuple[torch.device, ...]  # of the stages
USUAL = "what suits the devices"


def by_roads(way: Way, source: torch.device, target: torch.device, _: int) -> HandOff:
    """As chunks cross."""
    return hand_off_between(source, target, way)


WAYS: dict[str, MakeWay] = {
    USUAL: window_way,
    "main memory": through_memory,
    "peer roads": partial(by_roads, Way.PEER),
    "pinned roads": partial(by_roads, Way.PINNED),
}


@dataclass(frozen=True)
class Case:
    """A model, where its stages are, and how windows cross."""

    name: str
    devices: Devices
    way: str = USUAL

    @property
    def words(self) -> str:
        """For a line."""
        return f"{self.name} on {', '.join(map(str, self.devices))} by way of {self.way}"


@cache
def parts_of(name: str, devices: Devices) -> tuple[DeviceModel, ...]:
    """The model with a run of layers on each device."""
    weights: list[PlacedWeights]
    if name == PUBLISHED:
        config = synthetic_config(4, is_tiny=False)
        family = family_of(config)
        parsed = family.parse_config(config)
        shapes = family.expected_tensors(parsed)
        weights = [SyntheticWeights(shapes, STYLES[family.name], device, SyntheticForm()) for device in devices]
    else:
        tiny = tiny_model(*name.rsplit("-", 1))
        family, parsed = tiny.family, tiny.config
        weights = [DeviceWeights(tiny.source, tiny.names, device) for device in devices]
    split = LayerSplit.of(parsed.num_layers, CUTS[name] if len(devices) > 1 else ())
    built = family.build(parsed, SplitWeights(split, weights))
    return describe_parts(built, split, [StagePlace(device) for device in devices])


def chain_on(case: Case, beside: StageChain | None = None, group: int = 0) -> StageChain:
    """A chain with its windows captured."""
    others = [None] * len(case.devices) if beside is None else beside.stages
    parts = parts_of(case.name, case.devices)
    stages = []
    for number, (part, other) in enumerate(zip(parts, others, strict=True), start=1):
        with on_device(part.device):
            stage = Stage(part, SIZES, BUCKETS, other)
            stages.append(LocalStage(stage, WindowGraphs(stage).run, f"stage {number} of {len(parts)}"))
    ways = ChainWays.between([each.stage for each in stages], WAYS[case.way])
    return StageChain(stages, ways, group)


@cache
def alone(name: str, device: torch.device) -> tuple[Stage, RunStage]:
    """The whole model on one stage, captured."""
    stage = Stage(parts_of(name, (device,))[0], SIZES, BUCKETS)
    return stage, WindowGraphs(stage).run


@cache
def wanted(name: str, device: torch.device) -> tuple[tuple[int, ...], list[torch.Tensor], list[torch.Tensor]]:
    """Of one stage: what slot 0 gets next, every window's results and logits, the state behind them."""
    stage, run = alone(name, device)
    _reset(stage)
    begin_replies(stage, run)
    right = tuple(next_tokens(stage, run))
    _reset(stage)
    found = every_window(stage, run, right)
    return right, found, states_of([stage])


def check_bits(case: Case) -> str:
    """Tokens, logits and state of a chain."""
    right, windows, states = wanted(case.name, case.devices[0])
    chain = chain_on(case)
    found = every_window(chain, chain.run, right)
    for number, (one, other) in enumerate(zip(found, windows, strict=True)):
        assert torch.equal(one, other), f"window {number} differs: {one.tolist()[:40]} is not {other.tolist()[:40]}"
    for one, other in zip(states_of(chain.stages), states, strict=True):
        assert torch.equal(one, other), f"a state of {list(one.shape)} differs"
    assert windows[-1].isfinite().all()
    return f"{len(found)} windows and {len(states)} tensors of state are the same"


def check_groups(case: Case) -> str:
    """Windows of two groups under way at once, each on a road of its own: tokens of one stage, window by window."""
    stage, run = alone(case.name, case.devices[0])
    first = chain_on(case)
    groups = ((first, (0, 2)), (chain_on(case, beside=first, group=1), (1,)))
    _reset(stage)
    begin_replies(stage, run)
    begin_replies(first, first.run)
    first.wait()
    roads = GroupRoads(case.devices, len(groups))
    found: list[list[torch.Tensor]] = [[], []]
    for serial in range(1, GROUP_WINDOWS + 1):
        for number, (chain, slots) in enumerate(groups):
            with roads.of_group(number):
                found[number].append(run_window(chain, chain.run, serial, [PlannedPart(slot) for slot in slots]))
    for number in range(len(groups)):
        roads.join(number)
    for serial in range(1, GROUP_WINDOWS + 1):
        for number, (_, slots) in enumerate(groups):
            other = run_window(stage, run, serial, [PlannedPart(slot) for slot in slots]).cpu()
            one = found[number][serial - 1].cpu()
            assert torch.equal(one, other), f"window {serial} of group {number}: {one.tolist()} is not {other.tolist()}"
    for one, other in zip(states_of(first.stages), states_of([stage]), strict=True):
        assert torch.equal(one, other), f"a state of {list(one.shape)} differs"
    return f"{2 * GROUP_WINDOWS} windows are the same"


def window_times(stage: WindowStage, run: RunStage, slots: int) -> tuple[float, float]:
    """Microseconds of a window of a row for each slot, and of its launch by the host: medians."""
    for slot in range(slots):
        stage.set_reply(slot, ReplyStart(20, 1 + slot, 1 << 20, (), ChoiceOptions()))
    stage.set_plan(1, [PlannedPart(slot) for slot in range(slots)])
    times, launches = [], []
    for _ in range(TIMED_WINDOWS):
        stage.wait()
        begin = time.perf_counter()
        run(Variant.UNFILTERED_WINDOW, stage.bucket_for(slots))
        launches.append(time.perf_counter() - begin)
        stage.wait()
        times.append(time.perf_counter() - begin)
    return 1e6 * sorted(times)[len(times) // 2], 1e6 * sorted(launches)[len(launches) // 2]


def crossing_time(case: Case, rows: int, width: int) -> float:
    """Microseconds of the streams of so many rows, there and the chosen tokens back, over and over: the mean."""
    first, last = case.devices
    there, back = WAYS[case.way](first, last, 4 * rows * width), WAYS[case.way](last, first, 128)
    streams = [torch.zeros(rows, width, device=device) for device in case.devices]
    chosen = [torch.zeros(2, 16, dtype=torch.int32, device=device) for device in case.devices]
    times = 200
    for turn in range(2 * times):
        if turn == times:
            torch.cuda.synchronize(first)
            begin = time.perf_counter()
        there.before_overwriting()
        back.before_overwriting()
        pass_on(there, streams[:1], streams[1:])
        pass_on(back, chosen[1:], chosen[:1])
    torch.cuda.synchronize(first)
    return 1e6 * (time.perf_counter() - begin) / times


def show_times(cards: Devices) -> None:
    """A window of four published layers on one stage and on two, and what crosses."""
    stage, run = alone(PUBLISHED, cards[0])
    for slots in (1, SIZES.slots):
        _reset(stage)
        taken, launch = window_times(stage, run, slots)
        print(f"{slots} rows, one stage: {taken:.1f} us a window, {launch:.1f} us to launch", flush=True)
        for case in _cases(PUBLISHED, cards):
            chain = chain_on(case)
            found, host = window_times(chain, chain.run, slots)
            print(
                f"{slots} rows, {case.words}: {found:.1f} us ({found - taken:+.1f}), {host:.1f} to launch", flush=True
            )
    width = parts_of(PUBLISHED, cards[:1])[0].stream_width
    for case in _cases(PUBLISHED, cards):
        for rows in (1, MOST):
            taken = crossing_time(case, rows, width)
            print(f"{case.words}: {rows} rows of {4 * width:,} bytes there and tokens back {taken:.1f} us", flush=True)


def compile_side_by_side(names: Sequence[str], device: torch.device) -> None:
    """Every launch of every stage once, in many processes, so that this one finds its kernels compiled."""
    jobs = [(name, place) for name in reversed(names) for place in range(COMPILED_SHARES)]
    settle_keys()
    processes = max(1, min(14, (os.cpu_count() or 2) - 2, len(jobs)))
    with multiprocessing.get_context("spawn").Pool(processes, initializer=settle_keys) as pool:
        pool.map(partial(_run_share, device), jobs, chunksize=1)


def _run_share(device: torch.device, job: tuple[str, int]) -> None:
    """A share of a model's variants and buckets, each launch once a kind of layer."""
    name, place = job
    for part in parts_of(name, (device,) * (len(CUTS[name]) + 1)):
        stage = Stage(part, SIZES, BUCKETS)
        for variant, bucket in wanted_graphs(stage)[place::COMPILED_SHARES]:
            known = set[tuple[str, str]]()
            for launch in stage.launches(variant, bucket):
                if (launch.kind, launch.step) not in known:
                    known.add((launch.kind, launch.step))
                    launch.run()
        stage.wait()
    parts_of.cache_clear()  # other jobs of this process need the memory
    torch.cuda.empty_cache()


def _reset(stage: Stage) -> None:
    """As it was made, with cells that nobody wrote."""
    for tensor in stage.state.tensors:
        tensor.zero_()
    for slot in range(SIZES.slots):
        stage.reset_slot(slot)


def _cases(name: str, cards: Devices) -> list[Case]:
    """Stages on one card, with each way between them, and on two cards where there are two."""
    count = len(CUTS[name]) + 1
    together = cards[:1] * count
    if cards[0].type == "cpu":
        return [Case(name, together)]
    found = [Case(name, together, way) for way in WAYS]
    if len(cards) > 1:
        apart = tuple(cards[number % 2] for number in range(count))
        found += [Case(name, apart, way) for way in WAYS]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", choices=tuple(CUTS), help="all; on the CPU the tiny ones")
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    cards = tuple(torch.device("cuda", number) for number in range(torch.cuda.device_count())) if is_gpu else ()
    if is_gpu and not cards:
        print("there is no card here: --device cpu runs the checks without one")
        return 1
    cards = cards or (torch.device("cpu"),)
    names = options.models or [name for name in CUTS if is_gpu or name != PUBLISHED]
    begun = time.monotonic()
    if is_gpu:
        compile_side_by_side(names, cards[0])
        print(f"compiled in {time.monotonic() - begun:.1f} s", flush=True)
    checks: list[tuple[str, Callable[[], str]]] = []
    for name in names:
        checks += [(f"{case.words}, bits", partial(check_bits, case)) for case in _cases(name, cards)]
        of_groups = [case for case in _cases(name, cards) if case.way != "peer roads"][-3:]
        checks += [(f"{case.words}, two groups", partial(check_groups, case)) for case in of_groups]
    failed = 0
    for words, check in checks:
        try:
            print(f"[{time.monotonic() - begun:5.1f} s] {words}: {check()}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {words}\n{traceback.format_exc()}", flush=True)
    print(f"{len(checks) - failed} checks passed, {failed} failed", flush=True)
    if is_gpu and PUBLISHED in names:
        show_times(cards)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
