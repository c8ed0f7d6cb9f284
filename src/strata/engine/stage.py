"""One model's windows on one device: weights, the state of all slots, and for each bucket of rows its launches.

Knows tensors that never move and launches over them; knows no request and no draw of the host. Everything here goes to
the device's current stream in order; nothing waits for it but `to_host`, `wait` and what copies a slot's state.

A window of a bucket, when the device chooses:  set_plan -> window  -> results
when the host chooses:                          set_rows -> forward -> logits, then set_accepted -> commit
rows of a prompt:                               set_rows -> read (no logits), the last ones by forward and commit
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch

from strata.kernels.attention_rows import AttentionRowsShape, AttentionWork, RotationTables, rotation_table
from strata.kernels.delta_rows import SegmentLengths
from strata.kernels.expert_plan.tables import PlannedWork
from strata.kernels.sampler import accept_rows, begin_window, choose_tokens, choose_unfiltered_tokens
from strata.kernels.sampler.buffers import ChoiceScratch, ChosenTokens
from strata.kernels.sampler.plan import PlannedPart, WindowPlan, plan_words
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import ReplyStart, SlotVariables, slot_words
from strata.kernels.window_rows import WindowRows
from strata.models.device.buffers import Buffers
from strata.models.device.description import AttentionMixer, DeviceModel, SparseMlp
from strata.models.device.launches import Launch, Program, Workspace
from strata.models.device.programs import build_program
from strata.models.device.state import DeviceState
from strata.quant.cell_codes import CellKind

ROW_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MOST_ROWS = ROW_BUCKETS[-1]


class Variant(Enum):
    """What is run in one go over a bucket's rows."""

    WINDOW = "window"  # by the plan: rows, layers, head, tokens, which of them stand, commit
    UNFILTERED_WINDOW = "unfiltered window"  # the same in fewer launches, where no reply has top-k or top-p
    FORWARD = "forward"  # of given rows: layers, head
    COMMIT = "commit"  # the accepted rows become state
    READ = "read"  # of given rows: layers, and all of them become state; no head


@dataclass(frozen=True)
class StageSizes:
    """How much room a stage has."""

    slots: int
    context: int  # rows of a slot
    most_drafts: int = 0  # of a slot in one window
    kv_kind: CellKind = CellKind.BF16  # of keys and values
    kv_resident: int = 0  # cells of a slot that the device keeps while main memory has all; 0: all lie on the device


@dataclass(frozen=True)
class RowsPart:
    """Consecutive rows of one slot, from its position on."""

    slot: int
    position: int
    tokens: Sequence[int]


def bucket_of(rows: int) -> int:
    """The least bucket that holds `rows`. Raises ValueError for more than a window takes."""
    for bucket in ROW_BUCKETS:
        if bucket >= rows:
            return bucket
    raise ValueError(f"{rows} rows are more than the {MOST_ROWS} of a window")


def buckets_for(slots: int, most_drafts: int) -> tuple[int, ...]:
    """Every bucket that windows of these slots can need, rising; prompts are read in the last one."""
    most = min(MOST_ROWS, slots * (1 + most_drafts))
    return tuple(sorted({bucket_of(rows) for rows in range(1, most + 1)} | {MOST_ROWS}))


def most_rows_of(model: DeviceModel, state: DeviceState) -> int:
    """Rows of a window whose keys and values there is room for on the device at once."""
    if state.pools is None:
        return MOST_ROWS
    indexers = (layer.mixer.layer.shape.indexer for layer in model.layers if isinstance(layer.mixer, AttentionMixer))
    most = state.pools.most_rows(max(indexer.top_blocks for indexer in indexers if indexer is not None))
    return MOST_ROWS if most is None else min(MOST_ROWS, most)


class Stage:
    """See the module. Not thread-safe; one bucket runs at a time, because buckets share their buffers."""

    def __init__(self, model: DeviceModel, sizes: StageSizes, buckets: Sequence[int] | None = None) -> None:
        """Allocates the state and all buffers. `buckets`: None for all that windows of these sizes can need."""
        self.model = model
        self.sizes = sizes
        self.device = model.device
        self.segments = min(sizes.slots, MOST_ROWS)  # slots that may share a window
        self.buckets = tuple(sorted(buckets or buckets_for(sizes.slots, sizes.most_drafts)))
        self.state = DeviceState.empty(
            model.sizes, sizes.slots, sizes.context, sizes.kv_kind, self.device, sizes.kv_resident
        )
        self.most_rows = most_rows_of(model, self.state)  # that may share a window
        if self.most_rows < min(MOST_ROWS, sizes.slots * (1 + sizes.most_drafts)):
            raise ValueError(f"with {sizes.kv_resident} resident cells a slot only {self.most_rows} rows fit a window")
        self.variables = SlotVariables.empty(sizes.slots, self.device)  # what the device knows of each slot's reply
        self.plan = WindowPlan.empty(self.segments, sizes.most_drafts, self.device)
        self.results = WindowResults.empty(self.segments, sizes.most_drafts, self.device)
        self.accepted = torch.zeros(self.segments, dtype=torch.int32, device=self.device)
        self.workspace = Workspace(self.device)
        self._rotation = rotation_table(model.frequencies, self.state.cells, self.device)
        self._filtered: set[int] = set()  # slots whose replies have top-k or top-p
        self._buckets: dict[int, _Bucket] = {}
        for rows in reversed(self.buckets):  # the largest first: the others view its buffers
            self._buckets[rows] = self._make_bucket(rows)

    @property
    def vocabulary(self) -> int:
        """Logits of a row."""
        return self.model.vocabulary

    def bucket_for(self, rows: int) -> int:
        """The least of this stage's buckets that holds `rows`. Raises ValueError if none does."""
        for bucket in self.buckets:
            if bucket >= rows:
                return bucket
        raise ValueError(f"{rows} rows are more than the {self.buckets[-1]} of this stage's largest window")

    def window_rows(self, bucket: int) -> WindowRows:
        """The rows of a bucket as the kernels read them."""
        return self._buckets[bucket].buffers.rows

    def logits(self, bucket: int) -> torch.Tensor:
        """float32 [bucket, vocabulary] of the last forward or window; unused rows hold anything."""
        return self._buckets[bucket].buffers.logits

    def hidden(self, bucket: int) -> torch.Tensor:
        """float32 [bucket, streams * hidden]: the streams before the final mixer, behind a forward or window."""
        return self._buckets[bucket].buffers.streams

    def attention_work(self, bucket: int, shape: AttentionRowsShape) -> AttentionWork:
        """What the launches of attention layers of this shape leave for each other: of the last one that ran."""
        return self._buckets[bucket].buffers.attention_work(shape)

    def planned(self, bucket: int, mlp: SparseMlp) -> PlannedWork:
        """Where windows of a bucket find what is planned of such a layer's experts, where those lie in tiers."""
        return self._buckets[bucket].buffers.planned(mlp)

    def set_plan(self, serial: int, parts: Sequence[PlannedPart]) -> None:
        """Which slots take part in the next window, and their drafts; 1 + drafts rows each must fit the bucket."""
        self._put(plan_words(serial, parts, self.segments, self.sizes.most_drafts), self.plan.words)

    def set_reply(self, slot: int, start: ReplyStart) -> None:
        """A reply begins, or goes on where the host says, in a slot whose windows have all ended."""
        self._filtered.discard(slot)
        if start.options.has_filters:
            self._filtered.add(slot)
        self._put(slot_words(start), self.variables.words[slot])

    def end_reply(self, slot: int) -> None:
        """Windows that are planned for this slot from now on leave it as it is."""
        self.variables.words[slot].zero_()

    def set_rows(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        """The rows that the next forward or read of this bucket computes, part s being segment s.

        Raises ValueError if they do not fit the bucket, a slot or its context.
        """
        self._check_parts(bucket, parts)
        words = _row_words(bucket, self.segments, parts)
        self._put(words, self._buckets[bucket].words)

    def set_accepted(self, counts: Sequence[int]) -> None:
        """How many rows of each segment the next commit takes; segments beyond the list take none."""
        self._put([*counts, *[0] * (self.segments - len(counts))], self.accepted)

    def run(self, variant: Variant, bucket: int) -> None:
        """Launch one variant, op by op. On a GPU `engine.graphs` replays the same launches in one call."""
        for launch in self.launches(variant, bucket):
            launch.run()

    def window_variant(self, slots: Iterable[int]) -> Variant:
        """The shortest window for the replies that were set in these slots."""
        return Variant.UNFILTERED_WINDOW if self._filtered.isdisjoint(slots) else Variant.WINDOW

    def window(self, bucket: int) -> None:
        """By the plan: rows, logits, tokens, results and the commit of what stands; slots' variables move on."""
        self.run(Variant.WINDOW, bucket)

    def forward(self, bucket: int) -> None:
        """Logits and hidden rows of the rows that were set; no committed state changes."""
        self.run(Variant.FORWARD, bucket)

    def commit(self, bucket: int) -> None:
        """Make the accepted rows of the last forward of this bucket part of their slots' states."""
        self.run(Variant.COMMIT, bucket)

    def read(self, bucket: int) -> None:
        """Compute the rows that were set and make all of them state."""
        self.run(Variant.READ, bucket)

    def launches(self, variant: Variant, bucket: int) -> Program:
        """What a variant launches, in order; each step has a name."""
        return self._buckets[bucket].programs[variant]

    def reset_slot(self, slot: int) -> None:
        """Put a slot at the start of a text."""
        self.end_reply(slot)
        self.state.reset(slot)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in main memory, when everything launched before has ended."""
        return tensor.to("cpu", copy=True)

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wait_here(self) -> None:
        """Until what was launched on this thread's stream is done; copies on roads of their own may go on."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @property
    def rotation(self) -> RotationTables:
        """The turns of all positions of a slot."""
        return self._rotation

    def _make_bucket(self, rows: int) -> "_Bucket":
        words = torch.empty(4 * _room(rows) + 3 * _room(self.segments), dtype=torch.int32, device=self.device)
        self._put(_row_words(rows, self.segments, ()), words)
        buffers = Buffers(
            self.model, self.state, self._rotation, _view_rows(words, rows, self.segments), self.workspace
        )
        chosen = ChosenTokens.empty(rows, self.device)
        return _Bucket(buffers, words, chosen, self._variants(buffers, chosen))

    def _variants(self, buffers: Buffers, chosen: ChosenTokens) -> dict[Variant, Program]:
        rows, plan, variables = buffers.rows, self.plan, self.variables
        longest = min(rows.count, 1 + self.sizes.most_drafts)
        # A reply's only row becomes state, as `accept_rows` does it, unless it has no numbers and the request fails.
        by_device = build_program(buffers, SegmentLengths(longest, certain=1), self.accepted)
        by_host = build_program(buffers, SegmentLengths(rows.count), self.accepted)  # who may take none
        taking_all = build_program(buffers, SegmentLengths(rows.count, certain=rows.count), rows.segment_counts)
        scratch = ChoiceScratch.empty(rows.count, self.device)
        begin = _launch("begin", partial(begin_window, plan, variables, rows))
        choice = (buffers.logits, rows, variables, scratch, chosen)
        choose = _launch("choose", partial(choose_tokens, *choice))
        choose_unfiltered = _launch("choose", partial(choose_unfiltered_tokens, *choice))
        accept = _launch("accept", partial(accept_rows, chosen, rows, plan, variables, self.accepted, self.results))
        computed = [begin, *by_device.layers, *by_device.head]
        return {
            Variant.WINDOW: [*computed, choose, accept, *by_device.commit],
            Variant.UNFILTERED_WINDOW: [*computed, choose_unfiltered, accept, *by_device.commit],
            Variant.FORWARD: [*by_host.layers, *by_host.head],
            Variant.COMMIT: by_host.commit,
            Variant.READ: [*taking_all.layers, *taking_all.commit],
        }

    def _check_parts(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        rows = sum(len(part.tokens) for part in parts)
        if rows > min(bucket, self.most_rows) or len(parts) > self.segments or not all(part.tokens for part in parts):
            raise ValueError(
                f"{rows} rows in {len(parts)} parts do not fit {min(bucket, self.most_rows)} rows in {self.segments}, "
                "none empty"
            )
        slots = [part.slot for part in parts]
        if len(set(slots)) < len(slots) or not all(0 <= slot < self.sizes.slots for slot in slots):
            raise ValueError(f"the slots {slots} are not different ones of {self.sizes.slots}")
        for part in parts:
            if part.position + len(part.tokens) > self.state.cells:
                stop = part.position + len(part.tokens)
                raise ValueError(f"rows {part.position} to {stop} of slot {part.slot}: it has {self.state.cells} cells")

    def _put(self, words: Sequence[int], target: torch.Tensor) -> None:
        """Copy words to the device behind what was launched; the staging is the allocator's until it is done."""
        is_gpu = self.device.type == "cuda"
        staged = torch.tensor(words, dtype=torch.int32, pin_memory=is_gpu)
        target.copy_(staged, non_blocking=is_gpu)


@dataclass(frozen=True)
class _Bucket:
    """What belongs to one bucket."""

    buffers: Buffers
    words: torch.Tensor  # int32: all of buffers.rows, so that one copy sets them
    chosen: ChosenTokens
    programs: dict[Variant, Program]


def _launch(step: str, run: partial[None]) -> Launch:
    return Launch(None, "window", step, run)


def _room(count: int) -> int:
    """Words that a field takes: it begins at a multiple of 64 bytes, so that every bucket runs the same kernels."""
    return -(-count // 16) * 16


def _view_rows(words: torch.Tensor, rows: int, segments: int) -> WindowRows:
    fields = words.split([_room(rows)] * 4 + [_room(segments)] * 3)
    tokens, slots, positions, firsts, *by_segment = fields
    per_row = (field[:rows] for field in (tokens, slots, positions, firsts))
    return WindowRows(*per_row, *(field[:segments] for field in by_segment))


def _row_words(rows: int, segments: int, parts: Sequence[RowsPart]) -> list[int]:
    """The words of `WindowRows` for these parts, the rest unused."""
    tokens: list[int] = []
    slots: list[int] = []
    positions: list[int] = []
    firsts: list[int] = []
    starts: list[int] = []
    for part in parts:
        count, start = len(part.tokens), len(tokens)
        starts.append(start)
        tokens += part.tokens
        slots += [part.slot] * count
        positions += range(part.position, part.position + count)
        firsts += [start] * count
    counts = [len(part.tokens) for part in parts]
    per_row = (tokens, 0), (slots, -1), (positions, 0), (firsts, 0)
    per_segment = ([part.slot for part in parts], -1), (starts, 0), (counts, 0)
    words: list[int] = []
    for fields, room in ((per_row, _room(rows)), (per_segment, _room(segments))):
        for values, unused in fields:
            words += [*values, *[unused] * (room - len(values))]
    return words
