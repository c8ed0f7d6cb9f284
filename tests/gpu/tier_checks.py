"""What must hold of windows whose experts lie in tiers: the bits of those with every expert on the device.

Knows stages and who follows them; knows no process. A check returns a line, or raises AssertionError with numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from strata.engine.flights import in_flight
from strata.engine.graphs import WindowGraphs, wanted_graphs
from strata.engine.stage import RowsPart, Stage, Variant
from strata.experts.cache import ExpertId, SwapRule
from strata.experts.streams import streams_of
from strata.experts.swapping import Swapper
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.native.pool import Pool
from tests.engine.tiered_stages import Tiering
from tests.experts.busy_pool import slowed
from tests.gpu.tier_models import PUBLISHED, InTiers, in_tiers, new_stage, whole
from tests.random_text import token_ids_of

PREFIXES = (40, 9, 17)  # rows read into the slots 0, 1, 2
ROWS, ROWS_ON_CPU = tuple(range(1, 33)), (1, 3, 32)  # of windows of one slot
TOGETHER = ((1, 1, 1), (4, 3, 1), (16, 8, 8))  # rows of the three slots in one window
REPLY = 8  # tokens
EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)  # seats change with every window
MOST_TURNS = 4  # of the script, until something has been swapped
Check = Callable[[], str]


@dataclass(frozen=True)
class Case:
    """Where experts lie, and what happens meanwhile."""

    tiering: Tiering
    is_slow: bool = False  # others use the pool too
    with_swaps: bool = False
    waits_in_stream: bool = False  # for the CPU, and not a kernel

    def __str__(self) -> str:
        told = f"cache {100 * self.tiering.seats:.0f} %, {self.tiering.in_place:g} in place"
        words = {", exclusive": self.tiering.is_exclusive, ", slow pool": self.is_slow, ", swaps": self.with_swaps}
        words[", the stream waits"] = self.waits_in_stream
        return told + "".join(word for word, is_said in words.items() if is_said)


CASES = (
    *(Case(Tiering(seats, share)) for seats in (0.0, 0.25, 0.75) for share in (0.0, 0.3, 1.0)),
    Case(Tiering(1.0)),
    *(Case(Tiering(seats, share, is_exclusive=True)) for seats, share in ((0.25, 0.3), (0.75, 0.0))),
    *(Case(Tiering(0.25), is_slow=True, waits_in_stream=waits) for waits in (False, True)),
    Case(Tiering(0.0), waits_in_stream=True),
    *(Case(Tiering(seats, share), with_swaps=True) for seats, share in ((0.25, 0.3), (0.5, 0.0))),
    *(Case(Tiering(0.25, share, is_exclusive=True), with_swaps=True) for share in (0.0, 0.3)),
)
OF_PUBLISHED = (  # whose memory is not exclusive
    *(Case(Tiering(seats, share)) for seats, share in ((0.0, 0.0), (0.25, 0.3), (0.25, 1.0), (0.75, 0.0), (1.0, 0.0))),
    Case(Tiering(0.25, 0.3), is_slow=True),
    Case(Tiering(0.25, 0.3), with_swaps=True),
    Case(Tiering(0.25, 0.3), with_swaps=True, waits_in_stream=True),
)


def cases_of(name: str) -> tuple[Case, ...]:
    """Of one model."""
    return OF_PUBLISHED if name == PUBLISHED else CASES


def checks_of(name: str, pool: Pool, device: torch.device) -> Iterator[tuple[str, Check]]:
    """Every case of one model."""
    for case in cases_of(name):
        yield str(case), partial(check_case, name, case, pool, device)


def check_case(name: str, case: Case, pool: Pool, device: torch.device) -> str:
    """Logits and replies have the bits of the whole model; nothing is compiled once its windows are captured."""
    wanted = wanted_of(name, device)
    tiered = in_tiers(name, case.tiering, pool, device, waits_in_stream=case.waits_in_stream)
    with tiered as found, slowed(pool) if case.is_slow else nullcontext():
        stage = new_stage(found.model)
        run = WindowGraphs(stage).run
        with compiling_nothing(device):
            swaps = _turns(stage, run, wanted, found) if case.with_swaps else _turn(stage, run, wanted)
        told = _counted(found, case, device)
    return f"{len(wanted)} windows are equal, {told}" + (f", {swaps} swaps" if case.with_swaps else "")


@cache
def wanted_of(name: str, device: torch.device) -> list[torch.Tensor]:
    """What the model says with every expert on the device."""
    stage = new_stage(whole(name, device))
    return windows_of(stage, WindowGraphs(stage).run)


def windows_of(stage: Stage, run: Callable[[Variant, int], None]) -> list[torch.Tensor]:
    """Logits of windows of 1 to 32 rows of three slots, apart and together, then tokens of replies, a tensor each."""
    positions = list(PREFIXES)
    for slot, count in enumerate(PREFIXES):
        _read(stage, run, slot, count)
    found = []
    for count in ROWS_ON_CPU if stage.device.type == "cpu" else ROWS:
        slot = count % len(PREFIXES)
        tokens = token_ids_of(count, seed=count)
        found.append(_forward(stage, run, [RowsPart(slot, positions[slot], tokens)]))
        stage.set_accepted([1])
        run(Variant.COMMIT, stage.bucket_for(count))
        positions[slot] += 1
    for counts in TOGETHER:
        parts = [RowsPart(s, positions[s], token_ids_of(count, seed=50 + s)) for s, count in enumerate(counts)]
        found.append(_forward(stage, run, parts))
    found += _replies(stage, run, positions)
    assert all(bool(torch.isfinite(each).all()) for each in found), "numbers are not finite"
    return found


@contextmanager
def compiling_nothing(device: torch.device) -> Iterator[None]:
    """Raises AssertionError if a kernel is compiled or loaded inside."""
    if device.type == "cpu":
        yield
        return
    from strata.kernels.compiled import noting_compilations

    with noting_compilations() as noted:
        yield
    assert not noted.count, f"compiled late: {sorted({*noted.compiled, *noted.fetched})}"


def compile_share(name: str, share: int, shares: int, pool: Pool, device: torch.device) -> str:
    """Launch a share of the steps of all windows, with tiers and without, over rows that name no slot."""
    tiering = Tiering(0.25, 0.3)
    in_stream = in_tiers(name, tiering, pool, device, waits_in_stream=True)
    grouped = in_tiers(name, replace(tiering, groups=2), pool, device)
    with in_tiers(name, tiering, pool, device) as found, in_stream as also, grouped as beside:
        stages = [new_stage(model) for model in (found.model, also.model, beside.model, whole(name, device))]
        steps: dict[tuple[int, str, str], list[Callable[[], None]]] = {}
        for stage in stages:
            stage.set_plan(0, ())
            stage.set_accepted(())
            for variant, bucket in wanted_graphs(stage):
                for launch in stage.launches(variant, bucket):
                    steps.setdefault((bucket, launch.kind, launch.step), []).append(launch.run)
        mine = list(steps.values())[share::shares]
        with in_flight(stages[0]), in_flight(stages[1]), in_flight(stages[2]):
            for launches in mine:
                for run in launches:
                    run()
    return f"{len(mine)} steps ran"


def difference(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> str:
    """Which of two lists' tensors are not bit for bit the same; nothing if all are."""
    differing = [
        f"window {index}: {int((mine != theirs).sum())} of {mine.numel()} values"
        for index, (mine, theirs) in enumerate(zip(found, wanted, strict=True))
        if not torch.equal(mine.view(torch.int32), theirs.view(torch.int32))
    ]
    return "; ".join(differing[:6]) + f" ({len(differing)} in all)" if differing else ""


@contextmanager
def swapping(found: InTiers, device: torch.device) -> Iterator[Swapper]:
    """Seats follow the windows inside, eagerly."""
    swapper = Swapper(found.store, found.tiers, found.tiers.asked, streams_of(device), EAGER)
    found.tiers.follow(swapper.before_launch)
    try:
        yield swapper
    finally:
        swapper.close()


def _turn(stage: Stage, run: Callable[[Variant, int], None], wanted: list[torch.Tensor]) -> int:
    wrong = difference(windows_of(stage, run), wanted)
    assert not wrong, wrong
    return 0


def _turns(stage: Stage, run: Callable[[Variant, int], None], wanted: list[torch.Tensor], found: InTiers) -> int:
    """The script until experts have changed seats; then every seat holds its expert's bytes."""
    with swapping(found, stage.device) as swapper:
        for _ in range(MOST_TURNS):
            _turn(stage, run, wanted)
        assert swapper.swaps > 0, f"nothing was swapped in {MOST_TURNS} turns; {len(swapper._moves)} under way"
        while swapper._moves:
            stage.wait()
            swapper.before_launch(True)
        stage.wait()
    wrong = seats_with_other_bytes(found)
    assert not wrong, f"{len(wrong)} seats hold other bytes than main memory, such as {wrong[:4]}"
    return swapper.swaps


def seats_with_other_bytes(found: InTiers) -> list[ExpertId]:
    """Of the experts that lie in both memories."""
    store, wrong = found.store, []
    for layer, expert in torch.from_numpy(store.resident).nonzero().tolist():
        where = ExpertId(layer, expert)
        seat, place = store.seat(where), store.place(where)
        if seat is not None and place is not None and not torch.equal(seat.cpu(), place):
            wrong.append(where)
    return wrong


def _counted(found: InTiers, case: Case, device: torch.device) -> str:
    """Where experts ran, in words, after a check that they ran where the case wants them."""
    found.tiers.counts()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # the device was asked, and this time its answer is there
    counts, tiering = found.tiers.counts(), case.tiering
    told = f"{counts.seats} experts in seats, {counts.in_place} in place, {counts.on_cpu} on the CPU"
    assert (counts.seats > 0) == (tiering.seats > 0), told
    assert (counts.on_cpu > 0) == (tiering.seats < 1 and tiering.in_place < 1), told
    assert (counts.in_place > 0) == (tiering.seats < 1 and tiering.in_place > 0), told
    assert counts.on_cpu == counts.cpu.experts, f"{told}, which counted {counts.cpu.experts}"
    return told


def _read(stage: Stage, run: Callable[[Variant, int], None], slot: int, count: int) -> None:
    stage.reset_slot(slot)
    tokens, most = token_ids_of(count, seed=slot), stage.buckets[-1]
    for start in range(0, count, most):
        with in_flight(stage, is_read=True):
            stage.set_rows(most, [RowsPart(slot, start, tokens[start : start + most])])
            run(Variant.READ, most)


def _forward(stage: Stage, run: Callable[[Variant, int], None], parts: list[RowsPart]) -> torch.Tensor:
    rows = sum(len(part.tokens) for part in parts)
    bucket = stage.bucket_for(rows)
    with in_flight(stage):
        stage.set_rows(bucket, parts)
        run(Variant.FORWARD, bucket)
    return stage.to_host(stage.logits(bucket)[:rows])


def _replies(stage: Stage, run: Callable[[Variant, int], None], positions: list[int]) -> list[torch.Tensor]:
    """Greedy tokens of all slots, which the device chooses."""
    slots = range(len(positions))
    for slot, position in enumerate(positions):
        stage.set_reply(slot, ReplyStart(position, 1 + slot, 1 << 20, (), ChoiceOptions()))
    found, results = [], stage.results
    for window in range(REPLY):
        with in_flight(stage):
            stage.set_plan(window, [PlannedPart(slot) for slot in slots])
            run(stage.window_variant(slots), stage.bucket_for(len(slots)))
        words = stage.to_host(results.words).tolist()
        parts = read_results(words, results.segments, results.most_drafts)[1]
        found.append(torch.tensor([part.tokens for part in parts if part.slot in slots], dtype=torch.int32))
    return found
