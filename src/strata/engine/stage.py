"""One model's windows on one device: weights, the state of all slots, and for each bucket of rows its launches.

Knows tensors that never move and launches over them; knows no request and no draw of the host. Everything here goes to
the device's current stream in order; nothing waits for it but `to_host`, `wait` and what copies a slot's state.

A window of a bucket, when the device chooses:  set_plan -> window  -> results
when the host chooses:                          set_rows -> forward -> logits, then set_accepted -> commit
rows of a prompt:                               set_rows -> read (no logits), the last ones by forward and commit

A stage that has some of a model's layers is a part of a chain (`chain`), which moves streams and tokens between them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from strata.engine.chain_stage import Answering
from strata.engine.hand_off import Crosses, Crossing
from strata.engine.slot_keeper import StateKeeper
from strata.engine.stage_programs import Variant, WindowWords, build_variants
from strata.engine.stage_sizes import MOST_ROWS, ROW_BUCKETS, StageSizes, bucket_of, buckets_for
from strata.engine.window_words import BucketWords, RowsPart, row_words
from strata.kernels.attention_rows import AttentionRowsShape, AttentionWork, RotationTables, rotation_table
from strata.kernels.expert_plan.tables import PlannedWork
from strata.kernels.sampler.plan import PlannedPart, WindowPlan, plan_words
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import ReplyStart, SlotVariables, slot_words
from strata.kernels.window_rows import WindowRows
from strata.models.device.buffers import Buffers
from strata.models.device.description import AttentionMixer, DeviceModel, SparseMlp
from strata.models.device.launches import Program, Workspace
from strata.models.device.state import DeviceState

__all__ = [
    "MOST_ROWS", "ROW_BUCKETS", "RowsPart", "Stage", "StageSizes", "Variant", "bucket_of", "buckets_for", "most_rows_of"
]  # fmt: skip


def most_rows_of(model: DeviceModel, state: DeviceState) -> int:
    """Rows of a window whose keys and values there is room for on the device at once."""
    if state.pools is None:
        return MOST_ROWS
    indexers = (layer.mixer.layer.shape.indexer for layer in model.layers if isinstance(layer.mixer, AttentionMixer))
    most = state.pools.most_rows(max(indexer.top_blocks for indexer in indexers if indexer is not None))
    return MOST_ROWS if most is None else min(MOST_ROWS, most)


class Stage:
    """See the module. Not thread-safe; one bucket runs at a time, because buckets share their buffers."""

    def __init__(
        self,
        model: DeviceModel,
        sizes: StageSizes,
        buckets: Sequence[int] | None = None,
        beside: "Stage | None" = None,
    ) -> None:
        """Allocates the state and all buffers. `buckets`: None for all that windows of these sizes can need.

        beside: a stage over the same layers and sizes. This one has its slots, with their state and what is known of
        their replies, and buffers of its own: windows of other slots may run on both at once.
        """
        self.model: DeviceModel = model
        self.sizes: StageSizes = sizes
        self.device: torch.device = model.device
        if beside is not None:
            self._require_same(beside)
        self.segments = min(sizes.slots, MOST_ROWS)  # slots that may share a window
        self.buckets = tuple(sorted(buckets or buckets_for(sizes.slots, sizes.most_drafts)))
        self.state: DeviceState = _empty_state(model, sizes) if beside is None else beside.state
        self.most_rows = most_rows_of(model, self.state)  # that may share a window
        if self.most_rows < min(MOST_ROWS, sizes.slots * (1 + sizes.most_drafts)):
            raise ValueError(f"with {sizes.kv_resident} resident cells a slot only {self.most_rows} rows fit a window")
        self.variables: SlotVariables = _no_replies(model, sizes) if beside is None else beside.variables
        self.plan = WindowPlan.empty(self.segments, sizes.most_drafts, self.device)
        self.results = WindowResults.empty(self.segments, sizes.most_drafts, self.device)
        self.accepted = torch.zeros(self.segments, dtype=torch.int32, device=self.device)
        self.workspace = Workspace(self.device)
        self.rotation: RotationTables = _rotation(model, self.state) if beside is None else beside.rotation
        self._filtered: set[int] = set() if beside is None else beside._filtered  # slots with top-k or top-p
        self._buckets: dict[int, _Bucket] = {}
        for rows in reversed(self.buckets):  # the largest first: the others view its buffers
            self._buckets[rows] = self._make_bucket(rows)

    @property
    def vocabulary(self) -> int:
        """Logits of a row."""
        return self.model.vocabulary

    @property
    def max_position(self) -> int:
        """Rows that a slot may have."""
        return min(self.model.max_position, self.sizes.context)

    @property
    def asked(self) -> Sequence[Answering]:
        """Who answers windows while they run."""
        return self.model.asked

    @property
    def stages(self) -> "tuple[Stage, ...]":
        """This one: see `WindowStage`."""
        return (self,)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What can be run: a part of a model has some of them."""
        return tuple(self._buckets[self.buckets[0]].programs)

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

    def crossing(self, what: Crossing) -> list[torch.Tensor]:
        """What crosses to another stage, or came from there: the streams behind the layers, or the chosen tokens.

        Raises ValueError for chunks, whose streams are their memory's.
        """
        if what.what is Crosses.CHUNK:
            raise ValueError("the streams of a chunk are not a stage's: its memory gives them")
        bucket = self._buckets[what.size]
        return [bucket.buffers.streams] if what.what is Crosses.WINDOW else [bucket.words.chosen]

    def slot_keepers(self) -> list[StateKeeper]:
        """See `WindowStage`."""
        return [StateKeeper(self.state)]

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
        self._put(row_words(bucket, self.segments, parts), self._buckets[bucket].words.rows)

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

    def logits_on_host(self, bucket: int, start: int, stop: int) -> torch.Tensor:
        """See `WindowStage`: the next window writes over the stage's own."""
        return self.to_host(self.logits(bucket)[start:stop])

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wait_here(self) -> None:
        """Until what was launched on this thread's stream is done; copies on roads of their own may go on."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _require_same(self, beside: "Stage") -> None:
        """Raises ValueError for a stage of other layers or sizes, or one whose slots share pools of cells: a window
        takes places there that another one, which runs at the same time, still reads."""
        found = [(each.sizes, each.model.sizes, each.device) for each in (self, beside)]
        if found[0] != found[1]:
            raise ValueError(
                f"a stage of {self.sizes} on {self.device} beside one of {beside.sizes} on {beside.device}"
            )
        if beside.state.pools is not None:
            raise ValueError(
                f"stages whose cells lie in main memory (kv_resident {self.sizes.kv_resident}) have one group"
            )

    def _make_bucket(self, rows: int) -> "_Bucket":
        words = BucketWords.empty(rows, self.segments, self.device)
        window_rows = words.view_rows(rows, self.segments)
        buffers = Buffers(self.model, self.state, self.rotation, window_rows, self.workspace)
        deciding = WindowWords(self.plan, self.variables, self.accepted, self.results)
        programs = build_variants(buffers, deciding, words.view_chosen(rows), self.sizes.most_drafts)
        return _Bucket(buffers, words, programs)

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
    words: BucketWords
    programs: Mapping[Variant, Program]


def _empty_state(model: DeviceModel, sizes: StageSizes) -> DeviceState:
    return DeviceState.empty(
        model.sizes, sizes.slots, sizes.context, sizes.kv_kind, model.device, resident=sizes.kv_resident
    )


def _no_replies(model: DeviceModel, sizes: StageSizes) -> SlotVariables:
    """What the device knows of each slot's reply."""
    return SlotVariables.empty(sizes.slots, model.device)


def _rotation(model: DeviceModel, state: DeviceState) -> RotationTables:
    """The turns of all positions of a slot."""
    return rotation_table(model.frequencies, state.cells, model.device)
