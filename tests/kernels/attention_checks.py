"""Triton's attention of a window held against its twin, for the interpreter's tests and for tests/gpu.

Knows both roads; each check raises AssertionError. Choices are equal given equal scores, sums within rounding, and a
row's bits are the same whatever rows stand beside it.
"""

from dataclasses import replace

import torch

from strata.kernels.attention_rows import AttentionWork, ProjectedRows, reference
from strata.kernels.launch_shapes import dp4a_launch
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.quant.cell_codes import MOST_LEVEL4, CellKind, decode
from tests.kernels.attention_cases import AttentionWindow, break_cells, cell_tensors, window_rows
from tests.kernels.quantized_rows import assert_quantized

UNTOUCHED = -7


def prepare(window: AttentionWindow, *, is_reference: bool = False) -> AttentionWindow:
    """The window after its first op, with cells and work of its own."""
    from strata.kernels.attention_rows.prepare import attention_prepare

    own, road = window.with_own_state(), reference.attention_prepare if is_reference else attention_prepare
    road(own.projected, own.rows, own.rotation, own.cells, own.layer, own.work)
    return own


def attend(window: AttentionWindow) -> torch.Tensor:
    """[rows, query_width] by Triton, from prepared rows on; chooses first where there is an indexer."""
    from strata.kernels.attention_rows.attend import attention_attend
    from strata.kernels.attention_rows.choose import attention_choose

    shape = window.layer.shape
    out = torch.full((window.rows.count, shape.query_width), float("nan"), device=window.work.query.device)
    if shape.indexer is not None:
        attention_choose(window.rows, window.cells, shape, window.work)
    attention_attend(window.projected, window.rows, window.cells, shape, window.work, RowsOut(out, None))
    return out


def check_prepared(window: AttentionWindow) -> None:
    """Queries, cells and the keys of completed blocks are the twin's, and no other cell has changed.

    Values have the twin's bits whatever they are kept as. Keys are sums before they are kept: few codes lie one off.
    """
    found, wanted = prepare(window), prepare(window, is_reference=True)
    near, kind, head_dim = {"rtol": 1e-5, "atol": 2e-6}, window.cells.kind, window.layer.shape.head_dim
    torch.testing.assert_close(found.work.query, wanted.work.query, **near)
    for mine, twins in zip(found.cells.values.tensors, wanted.cells.values.tensors, strict=True):
        assert torch.equal(mine, twins), "values"
    _check_keys(*(decode(kind.keys, each.cells.keys, head_dim) for each in (found, wanted)), kind, near)
    if window.layer.shape.indexer is not None:
        assert torch.equal(found.cells.raw, wanted.cells.raw), "raw keys"
        torch.testing.assert_close(found.work.index_query, wanted.work.index_query, **near)
        torch.testing.assert_close(found.cells.pooled, wanted.cells.pooled, **near)
    by_triton, by_twin = cell_tensors(found.cells), cell_tensors(wanted.cells)
    for name, before in cell_tensors(window.cells).items():
        if not name.startswith("keys"):
            written = [(each[name] != before).any(dim=-1) for each in (by_triton, by_twin)]
            assert torch.equal(*written), f"other {name} were written"


def _check_keys(found: torch.Tensor, wanted: torch.Tensor, kind: CellKind, near: dict[str, float]) -> None:
    """Decoded keys [slots, cells, kv_heads, head_dim]: few of them lie one step off, where a sum lay between two."""
    if kind is CellKind.F32:
        torch.testing.assert_close(found, wanted, **near)
        return
    is_other = found != wanted
    assert float(is_other.float().mean()) < 0.01, "keys have other codes"
    step = wanted.abs().amax(dim=-1, keepdim=True) / MOST_LEVEL4  # of the coarsest code, and more than of a finer one
    assert bool(((found - wanted).abs() <= 1.01 * step).all()), "keys are more than a step off"


def check_attended(window: AttentionWindow) -> None:
    """What the rows choose follows from their scores; what they attend to gives the twin's rows."""
    own = prepare(window)
    break_unseen_cells(own)
    if own.work.choice is not None:
        own.work.choice.chosen.fill_(UNTOUCHED)
    found, wanted = attend(own), torch.empty(own.rows.count, own.layer.shape.query_width, device=own.work.query.device)
    if own.layer.shape.indexer is not None:
        check_choice(own)
    shape = own.layer.shape
    reference.attention_attend(own.projected, own.rows, own.cells, shape, own.work, RowsOut(wanted, None))
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=5e-6)


def break_unseen_cells(window: AttentionWindow) -> None:
    """NaN in every cell that no row of the window may see."""
    seen, indexer = [0] * window.cells.slots, window.layer.shape.indexer
    for slot, position in zip(window.rows.slots.tolist(), window.rows.positions.tolist(), strict=True):
        if slot >= 0:
            seen[slot] = max(seen[slot], position + 1)
    for slot in range(window.cells.slots):
        break_cells(window.cells, slot, seen[slot], 1 if indexer is None else indexer.ratio)


def check_choice(window: AttentionWindow) -> None:
    """Of a window that has chosen: scores near the twin's, and the twin's choice from the same scores."""
    indexer, choice = window.layer.shape.indexer, window.work.choice
    assert indexer is not None and choice is not None and window.work.index_query is not None
    assert window.cells.pooled is not None
    positions = window.rows.positions.tolist()
    for row, slot in enumerate(window.rows.slots.tolist()):
        is_choosing = slot >= 0 and positions[row] >= indexer.dense_positions
        assert int(choice.counts[row]) == (indexer.top_blocks if is_choosing else 0), f"count of row {row}"
        if is_choosing:
            complete = (positions[row] + 1) // indexer.ratio
            scores = choice.scores[row, :complete]
            wanted = reference.block_scores(window.work.index_query[row], window.cells.pooled[slot, :complete], indexer)
            torch.testing.assert_close(scores, wanted, rtol=1e-5, atol=1e-5)
            assert torch.equal(choice.chosen[row], reference.best_blocks(scores, indexer.top_blocks)), f"row {row}"
        else:
            assert bool((choice.chosen[row] == UNTOUCHED).all()), f"row {row} chooses nothing"


def check_again(window: AttentionWindow) -> None:
    """Launches after one another over the same buffers give the same bits, whatever the last one left in them."""
    own = prepare(window)
    wanted, work = attend(own), own.work
    for _ in range(3):
        for left in (work.peaks, work.totals, work.mixed):
            left.fill_(float("nan"))
        if work.choice is not None:
            assert not bool(work.choice.arrivals.any()), "programs that have scored were not counted back"
            work.choice.scores.fill_(float("nan"))
            work.choice.chosen.fill_(UNTOUCHED)
            work.choice.counts.fill_(UNTOUCHED)
        assert torch.equal(attend(own), wanted), "other bits in a later launch"
        if work.choice is not None:
            check_choice(own)


def check_company(window: AttentionWindow) -> None:
    """Each used row has the same bits in a window by itself, over the cells that the rows before it have left.

    So have the cells in the end.
    """
    together, state = prepare(window), window.with_own_state()
    wanted = attend(together)
    positions, device = window.rows.positions.tolist(), window.work.query.device
    for row, slot in enumerate(window.rows.slots.tolist()):
        if slot >= 0:
            one = ProjectedRows(
                *(None if part is None else part[row : row + 1] for part in vars(window.projected).values())
            )
            work = AttentionWork.empty(1, window.layer.shape, window.cells.count, device)
            alone = replace(state, projected=one, rows=window_rows([(slot, positions[row], 1)], 0, device), work=work)
            alone = prepare(alone)
            assert torch.equal(attend(alone)[0], wanted[row]), f"row {row} has other bits alone"
            state = alone
    of_all = cell_tensors(state.cells)
    for name, part in cell_tensors(together.cells).items():
        assert torch.equal(part, of_all[name]), f"other {name}"


def check_quantized(window: AttentionWindow) -> None:
    """Rows for the next matrix are those of the plain ones, quantized as defined, with and without the plain."""
    from strata.kernels.attention_rows.attend import attention_attend

    own = prepare(window)
    shape, count, device = own.layer.shape, own.rows.count, own.work.query.device
    plain = attend(own)
    quantized = Activations.empty(count, shape.query_width // 32, device, dp4a_launch(1, 1, 1))
    again = torch.empty_like(plain)
    for out in (RowsOut(again, quantized), RowsOut(None, quantized)):
        quantized.records.fill_(-1)
        attention_attend(own.projected, own.rows, own.cells, shape, own.work, out)
        assert_quantized(quantized, plain, list(range(count)))
    assert torch.equal(again, plain), "plain rows beside quantized ones"


SELECTIONS = ("few values", "equal values", "many values", "broken values")


def check_selection(values: str, blocks: int, top_blocks: int, chunk: int, device: torch.device | str) -> None:
    """Selecting alone, from scores with many ties, with none, with NaN and infinities: exactly the best, rising."""
    from tests.kernels.triton_attention_probes import select_rows

    # rows of one block more than they may take, of some more, of all
    complete = [top_blocks + 1, top_blocks + 2, (top_blocks + blocks) // 2, blocks]
    generator = torch.Generator(device).manual_seed(3)
    scores = torch.rand(len(complete), blocks, generator=generator, device=device)
    if values == "few values":
        scores.mul_(3).floor_()
    elif values == "equal values":
        scores.fill_(0.25)
    elif values == "broken values":
        scores[:, ::3], scores[:, 1::3] = float("nan"), float("inf")
        scores.view(torch.int32)[:, 2::3] = -1  # NaN with its sign set
    chosen = torch.full((len(complete), top_blocks), -7, dtype=torch.int32, device=device)
    select_rows(scores, torch.tensor(complete, dtype=torch.int32, device=device), chosen, chunk)
    for row, count in enumerate(complete):
        found = chosen[row]
        assert bool((found.diff() > 0).all()), f"row {row} is not rising"
        assert int(found[0]) >= 0 and int(found[-1]) < count, f"row {row} chooses what is not complete"
        if values != "broken values":
            assert torch.equal(found, reference.best_blocks(scores[row, :count], top_blocks)), f"row {row}"
