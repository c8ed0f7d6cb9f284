"""The torch twin of a window's attention gives what the models' mixers give, and refuses what it would misread."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from strata.kernels.attention_rows import (
    AttentionCells,
    AttentionLayer,
    AttentionRowsShape,
    AttentionWork,
    ProjectedRows,
    attention_attend,
    attention_choose,
    attention_prepare,
    rotation_table,
)
from strata.kernels.attention_rows.arguments import MOST_ELEMENTS
from strata.kernels.attention_rows.launches import ATTEND_LAUNCH, CHOOSE_LAUNCH, attend_launch
from strata.kernels.attention_rows.parts import LEAST_PART, MOST_PARTS, merged_parts, most_parts, part_size
from strata.kernels.attention_rows.reference import best_blocks
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.models.blocks import attention as attention_block
from strata.models.blocks import indexed_attention as indexed_block
from strata.models.blocks.rotary import rotation_at
from strata.models.mixers.attention import AttentionMixer
from strata.models.mixers.base import RowsInfo
from strata.models.mixers.indexed_attention import IndexedAttentionMixer
from strata.quant.cell_codes import CellKind, CellRows
from strata.state.kv import GrowingCells, GrowingRows
from tests.gpu import tune_attention
from tests.kernels.attention_cases import (
    GATED,
    INDEXED,
    PLAIN,
    TINY_INDEXER,
    AttentionWindow,
    Segment,
    frequencies_of,
    random_vectors,
    random_window,
    window_rows,
)

HIDDEN, CELLS, HALF = 40, 512, 4
FREQUENCIES = frequencies_of(HALF)
PLAIN_SEGMENTS = [(2, 37, 3), (0, 0, 2), (1, 300, 1)]
# dense and gathered rows, a slot that passes from one to the other (at 67), blocks completed from old and new raw keys
INDEXED_SEGMENTS = [(2, 0, 9), (0, 65, 5), (1, 300, 6), (3, 131, 1)]


class Beside:
    """One layer twice: the model's mixer with its states, and the cells and vectors of the kernels."""

    def __init__(self, shape: AttentionRowsShape, is_normed: bool, segments: Sequence[Segment], unused: int) -> None:
        generator = torch.Generator().manual_seed(7)

        def some(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator) / HIDDEN**0.5

        self.shape, self.segments, self.unused = shape, segments, unused
        self.vectors = random_vectors(shape, is_normed, generator)
        self.qkv = some(shape.projected_width, HIDDEN)
        self.index = None if shape.indexer is None else some(shape.indexer.width, HIDDEN)
        self.mixer = self._mixer()
        self.x = torch.randn(sum(segment[2] for segment in segments), HIDDEN, generator=generator)
        self.states = [self.mixer.new_state() for _ in segments]
        for state, (_, committed, _) in zip(self.states, segments, strict=True):
            if committed:
                x = torch.randn(committed, HIDDEN, generator=generator)
                self.mixer.read(x, _info(torch.arange(committed), ((0, committed),)), state)
        self.cells = self._cells()

    def _mixer(self) -> AttentionMixer | IndexedAttentionMixer:
        shape, vectors = self.shape, self.vectors
        block_shape = attention_block.AttentionShape(
            shape.query_heads, shape.kv_heads, shape.head_dim, shape.eps, shape.has_output_gate
        )
        out = torch.eye(shape.query_width)
        weights = attention_block.AttentionWeights(self.qkv, out, vectors.query_scale, vectors.key_scale)
        if shape.indexer is None:
            return AttentionMixer(weights, block_shape)
        assert vectors.index_query_scale is not None and vectors.index_key_scale is not None and self.index is not None
        indexer = indexed_block.IndexerShape(
            shape.indexer.heads, shape.indexer.head_dim, shape.indexer.budget, shape.indexer.ratio, shape.indexer.eps
        )
        index_weights = indexed_block.IndexerWeights(self.index, vectors.index_query_scale, vectors.index_key_scale)
        return IndexedAttentionMixer(weights, block_shape, index_weights, indexer, FREQUENCIES)

    def _cells(self) -> AttentionCells:
        """The mixer's committed cells where the kernels read them, among values that nobody may read."""
        slots, shape, indexer = 1 + max(segment[0] for segment in self.segments), self.shape, self.shape.indexer
        keys, values = (torch.full((slots, CELLS, shape.kv_heads, shape.head_dim), 1e30) for _ in range(2))
        cells = AttentionCells(CellKind.F32, CellRows(keys), CellRows(values))
        if indexer is not None:
            raw = torch.full((slots, CELLS, indexer.head_dim), 1e30)
            cells = replace(cells, raw=raw, pooled=torch.full((slots, CELLS // indexer.ratio, indexer.head_dim), 1e30))
        for state, (slot, _, _) in zip(self.states, self.segments, strict=True):
            for name, rows in vars(state).items():
                values_of(cells, name)[slot, : rows.count] = first_rows(rows, rows.count)
        return cells

    def by_mixer(self) -> torch.Tensor:
        """[rows, query_width]; the mixer's states hold the window's cells behind the committed ones."""
        bounds, start = [], 0
        for _, _, added in self.segments:
            bounds.append((start, start + added))
            start += added
        return self.mixer.window(self.x, _info(self.rows.positions[: len(self.x)].long(), tuple(bounds)), self.states)[
            0
        ]

    @property
    def rows(self) -> WindowRows:
        return window_rows(self.segments, self.unused, "cpu")

    def by_kernels(self) -> torch.Tensor:
        """[rows and unused rows, query_width], through the three ops; writes `cells`."""
        rows = self.rows
        x = torch.cat((self.x, torch.full((self.unused, HIDDEN), float("nan"))))
        # rows of one product of both matrices, as a stage computes them
        both = x @ torch.cat((self.qkv, self.qkv[:0] if self.index is None else self.index)).t()
        width = self.shape.projected_width
        projected = ProjectedRows(both[:, :width], None if self.index is None else both[:, width:])
        work = AttentionWork.empty(rows.count, self.shape, CELLS, "cpu")
        rotation = rotation_table(FREQUENCIES, CELLS, "cpu")
        attention_prepare(projected, rows, rotation, self.cells, AttentionLayer(self.shape, self.vectors), work)
        if self.shape.indexer is not None:
            attention_choose(rows, self.cells, self.shape, work)
        out = torch.full((rows.count, self.shape.query_width), float("nan"))
        attention_attend(projected, rows, self.cells, self.shape, work, RowsOut(out, None))
        return out


def first_rows(rows: GrowingCells | GrowingRows, count: int) -> torch.Tensor:
    """The first rows of what a mixer keeps, written ones that are not committed too."""
    return rows[:count] if isinstance(rows, GrowingCells) else rows.cells[:count]


def values_of(cells: AttentionCells, name: str) -> torch.Tensor:
    """Keys, values, raw or pooled keys of all slots, kept in float32."""
    found = getattr(cells, name)
    return found.codes if isinstance(found, CellRows) else found


def _info(positions: torch.Tensor, bounds: tuple[tuple[int, int], ...]) -> RowsInfo:
    rotation = rotation_at(positions, FREQUENCIES, torch.float32)
    return RowsInfo(torch.zeros(len(positions), dtype=torch.int64), positions, rotation, bounds)


@pytest.mark.parametrize("shape", [PLAIN, GATED])
@pytest.mark.parametrize("is_normed", [False, True])
def test_plain_attention_is_that_of_the_mixer(shape: AttentionRowsShape, is_normed: bool) -> None:
    beside = Beside(shape, is_normed, PLAIN_SEGMENTS, unused=2)
    found, wanted = beside.by_kernels(), beside.by_mixer()
    torch.testing.assert_close(found[: len(wanted)], wanted, rtol=2e-5, atol=2e-6)
    assert torch.equal(found[len(wanted) :], torch.zeros(2, shape.query_width))
    _check_written(beside)


def test_indexed_attention_is_that_of_the_mixer() -> None:
    beside = Beside(INDEXED, True, INDEXED_SEGMENTS, unused=3)
    found, wanted = beside.by_kernels(), beside.by_mixer()
    torch.testing.assert_close(found[: len(wanted)], wanted, rtol=2e-5, atol=2e-6)
    assert torch.equal(found[len(wanted) :], torch.zeros(3, INDEXED.query_width))
    _check_written(beside)


def _check_written(beside: Beside) -> None:
    """The mixer writes what a window adds into its own buffers: the kernels wrote the same, and nothing else."""
    for state, (slot, committed, added) in zip(beside.states, beside.segments, strict=True):
        for name, rows in vars(state).items():
            seen = committed + added
            if name == "pooled":
                assert beside.shape.indexer is not None
                seen //= beside.shape.indexer.ratio
            cells = values_of(beside.cells, name)[slot]
            torch.testing.assert_close(cells[:seen], first_rows(rows, seen), rtol=1e-5, atol=1e-6)
            assert bool((cells[seen:] == 1e30).all()), name


def test_blocks_are_chosen_as_the_model_chooses_them() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 9, (200, 130), generator=generator).float()  # ties everywhere
    wanted = indexed_block.choose_blocks(scores, 16)
    for row in range(200):
        assert torch.equal(best_blocks(scores[row], 16).long(), wanted[row])
    assert best_blocks(torch.zeros(40), 5).tolist() == [0, 1, 2, 3, 4]


def test_rows_that_see_every_block_choose_nothing() -> None:
    window = _prepared(random_window(INDEXED, [(0, 66, 2)], CELLS, half=HALF, unused=1))
    assert window.work.choice is not None
    window.work.choice.counts.fill_(99)
    attention_choose(window.rows, window.cells, INDEXED, window.work)
    assert window.work.choice.counts.tolist() == [0, 16, 0]


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    """Bits: drafts written by the same window or by an earlier one, alone or in company."""
    together = random_window(INDEXED, [(1, 70, 6), (0, 200, 1)], CELLS, half=HALF)
    whole = _attend(together.with_own_state())
    alone = together.with_own_state()
    for row in range(6):
        rows = window_rows([(1, 70 + row, 1)], 0, "cpu")
        assert together.projected.index is not None
        one = ProjectedRows(together.projected.qkv[row : row + 1], together.projected.index[row : row + 1])
        work = AttentionWork.empty(1, INDEXED, CELLS, "cpu")
        assert torch.equal(_attend(replace(alone, projected=one, rows=rows, work=work))[0], whole[row])


def _prepared(window: AttentionWindow) -> AttentionWindow:
    attention_prepare(window.projected, window.rows, window.rotation, window.cells, window.layer, window.work)
    return window


def _attend(window: AttentionWindow) -> torch.Tensor:
    shape = _prepared(window).layer.shape
    out = torch.empty(window.rows.count, shape.query_width)
    attention_choose(window.rows, window.cells, shape, window.work)
    attention_attend(window.projected, window.rows, window.cells, shape, window.work, RowsOut(out, None))
    return out


def test_rows_are_cut_into_few_parts_at_multiples_of_their_size() -> None:
    for seen in (1, 32, 33, 2051, 4096, 4097, 8192, 30_000, 262_144, 1 << 20):
        size = part_size(seen)
        assert size % 32 == 0 and -(-seen // size) <= MOST_PARTS
        assert size == 32 or -(-seen // (size // 2)) > MOST_PARTS
        assert -(-seen // size) <= most_parts(seen)
    assert [part_size(seen) for seen in (4096, 4097, 262_144)] == [32, 64, 2048]


def test_every_launch_that_is_timed_cuts_parts_into_whole_chunks() -> None:
    """And what is current comes first: the others are held against it."""
    assert (tune_attention.ATTENDS[0], tune_attention.CHOOSES[0]) == (ATTEND_LAUNCH, CHOOSE_LAUNCH)
    for launch in tune_attention.ATTENDS:
        assert launch.least_part % launch.chunk == 0 and launch.least_part >= LEAST_PART, launch
    for candidates in (tune_attention.ATTENDS, tune_attention.CHOOSES):
        assert len({tune_attention.spelled(launch) for launch in candidates}) == len(candidates)


def test_all_buckets_cut_and_merge_a_row_alike() -> None:
    """So its bits are the same in each: what else a launch says changes none."""
    for kind in CellKind:
        launches = [attend_launch(rows, kind) for rows in range(1, 33)]
        merges = {(one.merge_warps, one.rotated_merge_warps, one.rotated_merge_step) for one in launches}
        assert len(merges) == len({(one.chunk, one.least_part, one.warps) for one in launches}) == 1
        assert launches[0].least_part % launches[0].chunk == 0 and launches[0].least_part >= LEAST_PART


def test_rows_are_merged_alike_in_slots_of_any_length() -> None:
    assert (merged_parts(None, 32), merged_parts(None, 64)) == (MOST_PARTS, MOST_PARTS)
    assert [merged_parts(2051, least) for least in (32, 64)] == [128, 64]
    assert [merged_parts(seen, 64) for seen in (1, 64, 65, 129, 100_000)] == [1, 1, 2, 4, MOST_PARTS]


def test_work_tells_its_size_without_memory() -> None:
    made = AttentionWork.empty(2, INDEXED, CELLS, "cpu")
    assert AttentionWork.empty(2, INDEXED, CELLS, "meta").bytes_used() == made.bytes_used()
    # parts of a row: 67 cells at most, so 3; query, sums, index query, scores, chosen, counts, arrivals
    floats = 4 * 32 + 4 * 3 * (1 + 1 + 32) + 2 * 16 + 128 + 16 + 1 + 1
    assert made.bytes_used() == 2 * 4 * floats


def test_other_shapes_and_types_are_refused() -> None:
    window = random_window(INDEXED, [(0, 3, 1)], CELLS, half=HALF)
    projected, rows, cells, work = window.projected, window.rows, window.cells, window.work
    out = RowsOut(torch.empty(1, INDEXED.query_width), None)
    with pytest.raises(ValueError, match=r"projected.index is None; it must be float32 \[1, 48\]"):
        attention_prepare(ProjectedRows(projected.qkv), rows, window.rotation, cells, window.layer, work)
    with pytest.raises(ValueError, match=r"projected.qkv must be .*columns side by side"):
        attention_attend(ProjectedRows(projected.qkv[:, ::2]), rows, cells, INDEXED, work, out)
    with pytest.raises(ValueError, match="rotation has 100 positions; the slots' 512 cells need as many"):
        short = rotation_table(FREQUENCIES, 100, "cpu")
        attention_prepare(projected, rows, short, cells, window.layer, work)
    with pytest.raises(ValueError, match="rotation turns 18 values of a head; it must be from 2 to 16"):
        wide = rotation_table(frequencies_of(9), CELLS, "cpu")
        attention_prepare(projected, rows, wide, cells, window.layer, work)
    with pytest.raises(ValueError, match="without an indexer has no blocks"):
        attention_choose(rows, cells, GATED, work)
    with pytest.raises(ValueError, match=r"work\.choice is None"):
        attention_attend(projected, rows, cells, INDEXED, replace(work, choice=None), out)
    with pytest.raises(ValueError, match="room for 2 parts of a row; slots of 512 cells need 3"):
        small = AttentionWork.empty(1, INDEXED, 64, "cpu")
        attention_attend(projected, rows, cells, INDEXED, replace(work, **_sums(small)), out)
    with pytest.raises(ValueError, match="33554432 cells of 2 x 32 are too many for a slot"):
        many = CellRows(torch.empty(1, MOST_ELEMENTS // 64, 2, 32, device="meta"))
        attention_attend(
            ProjectedRows(torch.empty(1, PLAIN.projected_width)),
            rows,
            AttentionCells(CellKind.F32, many, many),
            PLAIN,
            work,
            out,
        )
    with pytest.raises(ValueError, match="head_dim must be one of 32, 64, 128, 256, not 80"):
        replace(PLAIN, head_dim=80)
    with pytest.raises(ValueError, match="top_blocks must be from 1 to 2047, not 2048"):
        replace(TINY_INDEXER, top_blocks=2048)
    with pytest.raises(ValueError, match="4194304 cells are 1048576 blocks, too many for a slot: fewer than 1048576"):
        keys = CellRows(torch.empty(1, 1 << 22, 1, 32, device="meta"))
        raw, pooled = (torch.empty(1, count, 16, device="meta") for count in (1 << 22, 1 << 20))
        attention_choose(rows, AttentionCells(CellKind.F32, keys, keys, raw, pooled), INDEXED, work)
    with pytest.raises(ValueError, match="5 query heads cannot share 2 key heads"):
        replace(PLAIN, query_heads=5)


def _sums(work: AttentionWork) -> dict[str, torch.Tensor]:
    return {"peaks": work.peaks, "totals": work.totals, "mixed": work.mixed}
