"""What must hold of a stage's windows on a GPU: the twins' numbers, the library's, and bits that depend on a row alone.

Knows stages and models in C++; knows no process. A check returns its numbers or raises AssertionError with them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from strata.engine.graphs import WindowGraphs, capturing
from strata.engine.stage import RowsPart, Stage, Variant
from strata.kernels.compiled import noting_compilations
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.cell_kind import with_cells
from strata.models.device.state import SavedSlot
from tests.gpu.window_models import PUBLISHED, kind_of, new_stage
from tests.random_text import token_ids_of

Numbers = dict[str, Any]
PREFIXES = (40, 9, 530)  # rows read into the slots 0, 1, 2: behind the indexer's budget, short, behind a split of keys
NEW_ROWS = 32


@dataclass
class Subject:
    """A stage with three slots of which something was read."""

    name: str
    stage: Stage
    run: Callable[[Variant, int], None]
    saved: list[SavedSlot] = field(default_factory=list)

    @classmethod
    def open(cls, name: str, device: torch.device) -> "Subject":
        """The stage of a model with its windows captured and its prefixes read."""
        stage = new_stage(name, device)
        subject = cls(name, stage, WindowGraphs(stage).run)
        for slot in range(len(PREFIXES)):
            subject.read(slot, subject.prefix(slot))
            subject.saved.append(stage.state.save(slot, PREFIXES[slot]))
        return subject

    def prefix(self, slot: int) -> list[int]:
        """What was read into a slot."""
        return token_ids_of(PREFIXES[slot], slot, self.stage.vocabulary)

    def new_rows(self, slot: int) -> list[int]:
        """What comes behind it."""
        return token_ids_of(NEW_ROWS, 100 + slot, self.stage.vocabulary)

    def read(self, slot: int, tokens: list[int], position: int = 0) -> None:
        """Make tokens state, as many at a time as a window takes."""
        self.stage.reset_slot(slot)
        most = self.stage.buckets[-1]
        for start in range(0, len(tokens), most):
            self.stage.set_rows(most, [RowsPart(slot, position + start, tokens[start : start + most])])
            self.run(Variant.READ, most)

    def restore(self, slot: int) -> None:
        """Put a slot behind its prefix again."""
        self.stage.state.restore(slot, self.saved[slot])

    def forward(self, *parts: RowsPart) -> torch.Tensor:
        """Logits of some rows, in main memory."""
        count = sum(len(part.tokens) for part in parts)
        bucket = self.stage.bucket_for(count)
        self.stage.set_rows(bucket, parts)
        self.run(Variant.FORWARD, bucket)
        return self.stage.to_host(self.stage.logits(bucket)[:count])

    def commit(self, rows: int, *accepted: int) -> None:
        """Make accepted rows of the last forward of `rows` rows state."""
        self.stage.set_accepted(accepted)
        self.run(Variant.COMMIT, self.stage.bucket_for(rows))

    def one_by_one(self, slot: int, tokens: list[int]) -> torch.Tensor:
        """Logits of tokens behind a slot's prefix, each committed before the next."""
        self.restore(slot)
        found = []
        for row, token in enumerate(tokens):
            found.append(self.forward(RowsPart(slot, PREFIXES[slot] + row, [token])))
            self.commit(1, 1)
        return torch.cat(found)

    def chosen(self, slot: int) -> tuple[int, ...]:
        """The tokens that the last window gave a slot."""
        results = self.stage.results
        words = self.stage.to_host(results.words).tolist()
        parts = read_results(words, results.segments, results.most_drafts)[1]
        return next(part.tokens for part in parts if part.slot == slot)


def checks_of(subject: Subject) -> Iterator[tuple[str, Callable[[], Numbers]]]:
    """Every check of one model, to be run in this order."""
    if subject.name != PUBLISHED:
        yield "against the torch road on the CPU", partial(against_twin, subject)
        yield "against the C++ library", partial(against_library, subject)
    yield "a graph gives the bits of its launches", partial(graphs_are_their_launches, subject)
    yield "rows alone: windows of 1 to 32 rows", partial(rows_alone, subject)
    yield "rows in company", partial(rows_in_company, subject)
    yield "drafts right and wrong, by the host", partial(drafts_by_host, subject)
    yield "drafts right and wrong, by the device", partial(drafts_by_device, subject)
    yield "state written by windows and reads themselves", partial(state_in_place, subject)
    yield "nothing compiles, nothing is allocated", partial(nothing_is_made, subject)
    yield "an interrupt in a capture", partial(interrupted_capture, subject)


def against_twin(subject: Subject) -> Numbers:
    """Reads, windows of two slots with commits, and a window behind 530 cells, beside a stage of twins."""
    twin_stage = new_stage(subject.name, torch.device("cpu"))
    twin = Subject(subject.name, twin_stage, twin_stage.run)
    both = (subject, twin)
    logits: list[list[torch.Tensor]] = [[], []]
    for slot in (0, 1):
        subject.restore(slot)
        twin.read(slot, subject.prefix(slot))
    for slot in (0, 1):
        state_error = relative(subject.stage.state.delta[:, slot], twin.stage.state.delta[:, slot])
        assert state_error < 0.2, f"recurrent state of slot {slot} is off by {state_error:.2e}"
    saved = subject.saved[2]
    twin.stage.state.restore(2, SavedSlot(saved.rows, [tensor.cpu() for tensor in saved.tensors]))
    for found, each in zip(logits, both, strict=True):
        parts = [RowsPart(0, PREFIXES[0], subject.new_rows(0)[:3]), RowsPart(1, PREFIXES[1], subject.new_rows(1)[:4])]
        found.append(each.forward(*parts))
        each.commit(7, 2, 4)
        parts = [RowsPart(0, PREFIXES[0] + 2, subject.new_rows(0)[2:5]), RowsPart(1, PREFIXES[1] + 4, [1, 2])]
        found.append(each.forward(*parts))
        found.append(each.forward(RowsPart(2, PREFIXES[2], subject.new_rows(2)[:4])))
    return close(subject, torch.cat(logits[0]), torch.cat(logits[1]))


def against_library(subject: Subject) -> Numbers:
    """Windows behind the first two prefixes beside the same weights in the C++ library."""
    from strata.models.base import Segment
    from strata.models.fast.attach import attach_fast_windows
    from strata.models.fast.loading import open_packed_weights
    from strata.native.pool import Pool
    from tests.gpu.tiny_models import tiny_model

    family, _, choice = subject.name.rpartition("-")
    tiny, pool = tiny_model(family, choice), Pool(2, keeps_cores=False)
    config = with_cells(tiny.config, kind_of(subject.name))
    native: Any = tiny.family.build(config, open_packed_weights(tiny.source, tiny.names, pool))
    assert attach_fast_windows(native, pool)
    found, wanted = [], []
    for slot in (0, 1, 2):
        state, text = native.new_state(), torch.tensor(subject.prefix(slot))
        for start in range(0, len(text), 16):
            rows = text[start : start + 16]
            native.commit(native.window([Segment(state, rows)]), [len(rows)])
        subject.restore(slot)
        new = subject.new_rows(slot)[:6]
        wanted.append(native.window([Segment(state, torch.tensor(new))]).output.logits)
        found.append(subject.forward(RowsPart(slot, PREFIXES[slot], new)))
    numbers = close(subject, torch.cat(found), torch.cat(wanted))
    pool.close()
    return numbers


def graphs_are_their_launches(subject: Subject) -> Numbers:
    """A window of every bucket, replayed and launched op by op."""
    for slot in range(len(PREFIXES)):
        subject.restore(slot)
    differing = []
    for bucket in subject.stage.buckets:
        rows = min(bucket, NEW_ROWS)
        subject.stage.set_rows(bucket, [RowsPart(0, PREFIXES[0], subject.new_rows(0)[:rows])])
        found = []
        for run in (subject.run, subject.stage.run):
            subject.stage.logits(bucket).fill_(float("nan"))
            run(Variant.FORWARD, bucket)
            found.append(subject.stage.to_host(subject.stage.logits(bucket)[:rows]))
        if not torch.equal(*found):
            differing.append(bucket)
    assert not differing, f"buckets whose graph gives other bits: {differing}"
    return {"buckets": len(subject.stage.buckets)}


def rows_alone(subject: Subject) -> Numbers:
    """Windows of 1 to 32 rows of each slot beside its rows one by one; then the state behind them."""
    most = subject.stage.buckets[-1]
    wrong: list[str] = []
    for slot in range(len(PREFIXES)):
        tokens = subject.new_rows(slot)
        wanted = subject.one_by_one(slot, tokens)
        after = subject.stage.state.save(slot, PREFIXES[slot] + NEW_ROWS)
        assert bool(torch.isfinite(wanted).all()), f"logits of slot {slot} are not finite"
        for count in range(1, most + 1):
            subject.restore(slot)
            found = subject.forward(RowsPart(slot, PREFIXES[slot], tokens[:count]))
            if not torch.equal(found, wanted[:count]):
                wrong.append(f"slot {slot}, {count} rows: {difference(found, wanted[:count])}")
        subject.commit(most, NEW_ROWS)
        state = subject.stage.state.save(slot, PREFIXES[slot] + NEW_ROWS)
        wrong += [f"slot {slot}, {each}" for each in state_differences(state, after)]
    assert not wrong, "; ".join(wrong[:12]) + f" ({len(wrong)} in all)"
    return {"windows": 3 * most}


def rows_in_company(subject: Subject) -> Numbers:
    """A slot's rows in windows with others, at every place and in several buckets."""
    for slot in range(len(PREFIXES)):
        subject.restore(slot)
    alone = [subject.forward(RowsPart(slot, PREFIXES[slot], subject.new_rows(slot)[:8])) for slot in range(3)]
    wrong: list[str] = []
    windows = 0
    for counts in ((1, 1, 1), (4, 1, 3), (1, 7, 2), (8, 8, 8), (2, 0, 5), (0, 3, 8)):
        for first in range(3):
            order = [(first + step) % 3 for step in range(3)]
            parts = [RowsPart(s, PREFIXES[s], subject.new_rows(s)[: counts[s]]) for s in order if counts[s]]
            if sum(counts) > subject.stage.buckets[-1]:
                continue
            logits, start = subject.forward(*parts), 0
            windows += 1
            for part in parts:
                stop = start + len(part.tokens)
                if not torch.equal(logits[start:stop], alone[part.slot][: len(part.tokens)]):
                    wrong.append(f"slot {part.slot} of rows {counts} in order {order}")
                start = stop
    assert not wrong, "; ".join(wrong[:12]) + f" ({len(wrong)} in all)"
    return {"windows": windows}


def drafts_by_host(subject: Subject) -> Numbers:
    """Windows with wrong rows behind right ones, some accepted, leave the state of rows one by one."""
    for slot in range(len(PREFIXES)):
        tokens, wrong = subject.new_rows(slot)[:12], token_ids_of(4, 7, subject.stage.vocabulary)
        wanted = subject.one_by_one(slot, tokens)
        subject.restore(slot)
        found, position = [], 0
        for right, false in ((2, 2), (1, 3), (4, 0), (3, 1), (2, 0)):
            rows = [*tokens[position : position + right], *wrong[:false]]
            logits = subject.forward(RowsPart(slot, PREFIXES[slot] + position, rows))
            found.append(logits[:right])
            subject.commit(len(rows), right)
            position += right
        assert torch.equal(torch.cat(found), wanted), f"slot {slot}: {difference(torch.cat(found), wanted)}"
    return {"rows": 12 * len(PREFIXES)}


def drafts_by_device(subject: Subject) -> Numbers:
    """Greedy replies whose tokens the device chooses: one by one, with right drafts and with wrong ones."""
    count, accepted = 12, 0
    for slot in range(len(PREFIXES)):
        replies: list[list[int]] = []
        for with_drafts in (False, True):
            subject.restore(slot)
            start = ReplyStart(PREFIXES[slot], subject.new_rows(slot)[0], count, (), ChoiceOptions())
            subject.stage.set_reply(slot, start)
            reply: list[int] = []
            while len(reply) < count:
                drafts: tuple[int, ...] = ()
                if with_drafts:
                    right = replies[0][len(reply) : len(reply) + len(reply) % 3]
                    drafts = (
                        *right,
                        (replies[0][min(len(reply) + len(right), count - 1)] + 1) % subject.stage.vocabulary,
                    )
                subject.stage.set_plan(len(reply), [PlannedPart(slot, drafts)])
                subject.run(Variant.WINDOW, subject.stage.bucket_for(1 + len(drafts)))
                tokens = subject.chosen(slot)
                assert tokens, f"slot {slot}: a window gave no token behind {reply}"
                accepted += len(tokens) - 1
                reply += tokens
            replies.append(reply)
        assert replies[0] == replies[1], f"slot {slot}: {replies[0]} one by one, {replies[1]} with drafts"
    return {"accepted drafts": accepted}


def state_in_place(subject: Subject) -> Numbers:
    """Rows that the device takes one by one, alone and in company, and rows that are read: as the host commits them."""
    slots, count, wrong = range(len(PREFIXES)), 6, []
    groups = [[slot] for slot in slots] + [list(slots)]
    for group in groups:
        for slot in group:
            subject.restore(slot)
            start = ReplyStart(PREFIXES[slot], subject.new_rows(slot)[0], count, (), ChoiceOptions())
            subject.stage.set_reply(slot, start)
        rows = {slot: [subject.new_rows(slot)[0]] for slot in group}
        for window in range(count):
            subject.stage.set_plan(window, [PlannedPart(slot) for slot in group])
            subject.run(subject.stage.window_variant(group), subject.stage.bucket_for(len(group)))
            for slot in group:
                rows[slot] += subject.chosen(slot)
        for slot in group:
            tokens, stop = rows[slot][:count], PREFIXES[slot] + count
            found = {"decoded": subject.stage.state.save(slot, stop)}
            subject.restore(slot)
            subject.stage.set_rows(subject.stage.buckets[-1], [RowsPart(slot, PREFIXES[slot], tokens)])
            subject.run(Variant.READ, subject.stage.buckets[-1])
            found["read"] = subject.stage.state.save(slot, stop)
            subject.one_by_one(slot, tokens)
            wanted = subject.stage.state.save(slot, stop)
            for how, state in found.items():
                wrong += [f"slot {slot} of {group}, {how}: {each}" for each in state_differences(state, wanted)]
    assert not wrong, "; ".join(wrong[:12]) + f" ({len(wrong)} in all)"
    return {"states": 2 * sum(map(len, groups))}


def nothing_is_made(subject: Subject) -> Numbers:
    """Windows of every bucket and variant after the warm-up: no compilation, no memory of the card."""
    stage = subject.stage
    if stage.device.type != "cuda":
        return {"skipped": "no GPU"}
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with noting_compilations() as noted:
        for bucket in stage.buckets:
            for variant in stage.variants:
                stage.run(variant, bucket)
        stage.wait()
    made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert not noted.count, f"compiled late: {sorted({*noted.compiled, *noted.fetched})}"
    assert made == 0, f"{made} allocations in {len(stage.buckets)} buckets: an op makes a tensor when it is launched"
    return {"allocations": made}


def interrupted_capture(subject: Subject) -> Numbers:
    """Ctrl-C between two captured launches: the device answers, and the next capture gives the same bits."""
    stage, bucket = subject.stage, subject.stage.buckets[0]
    if stage.device.type != "cuda":
        return {"skipped": "no GPU"}
    subject.restore(0)
    part = RowsPart(0, PREFIXES[0], subject.new_rows(0)[:1])
    wanted, program = subject.forward(part), stage.launches(Variant.FORWARD, bucket)
    was_raised = False
    try:
        with torch.cuda.stream(torch.cuda.Stream()), capturing(torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()):
            program[0].run()
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        was_raised = True
    assert was_raised, "the interrupt was lost"
    stage.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()), capturing(graph, torch.cuda.graph_pool_handle()):
        for launch in program:
            launch.run()
    stage.wait()
    stage.logits(bucket).fill_(float("nan"))
    graph.replay()
    assert torch.equal(stage.to_host(stage.logits(bucket)[:1]), wanted), "the next capture gives other bits"
    return {"launches": len(program)}


def close(subject: Subject, found: torch.Tensor, wanted: torch.Tensor) -> Numbers:
    """Relative errors row by row. Of integer codes an activation may fall on the other side of a half, which stays in
    the state: tiny rows of two blocks are then off by percents."""
    assert bool(torch.isfinite(found).all()), "logits are not finite"
    errors = ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).sort().values
    middle, largest = float(errors[len(errors) // 2]), float(errors[-1])
    is_float = subject.name.endswith("-none")
    limits = (1e-5, 1e-4) if is_float else (0.02, 0.2)
    numbers = {"median": middle, "largest": largest, "rows": len(errors)}
    assert middle < limits[0] and largest < limits[1], f"relative errors of rows {numbers}, limits {limits}"
    return numbers


def state_differences(found: SavedSlot, wanted: SavedSlot) -> list[str]:
    """What is not equal of two states of a slot behind equally many rows."""
    heads = ("keys", "values") if len(found.tensors) == 8 else ("keys", "key scales", "values", "value scales")
    names = ("delta", "conv tail", "n-gram tail", *heads, "raw", "pooled", "history")
    parts = zip(names, found.tensors, wanted.tensors, strict=True)
    return [f"{name}: {difference(mine, other)}" for name, mine, other in parts if not torch.equal(mine, other)]


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of two tensors on any device; 0 for empty ones."""
    if not wanted.numel():
        return 0.0
    return float((found.cpu() - wanted.cpu()).norm() / wanted.cpu().norm().clamp_min(1e-30))


def difference(found: torch.Tensor, wanted: torch.Tensor) -> str:
    """How far apart two tensors are that should be equal."""
    differs = found != wanted
    rows = differs.flatten(1).any(dim=1) if found.dim() > 1 else differs
    first = rows.nonzero()[:4, 0].tolist()
    return f"{int(differs.sum())} of {found.numel()} values, error {relative(found, wanted):.1e}, first rows {first}"
