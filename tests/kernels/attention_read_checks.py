"""Reads of random attention rows in pieces, and what must hold of them. Knows no road: twin, interpreter and GPU are
asked the same."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from strata.kernels.attention_read import AttentionReadWork
from strata.kernels.attention_read.arguments import GROUP_BLOCKS
from strata.kernels.attention_rows import AttentionCells, AttentionRowsShape, ProjectedRows
from strata.kernels.attention_rows.arguments import IndexerRowsShape
from strata.kernels.attention_rows.reference import best_blocks, chosen_cells
from strata.quant.cell_codes import CellCode, CellKind, CellRows, decode, rotate
from tests.kernels.attention_cases import (
    AttentionWindow,
    break_cells,
    cell_tensors,
    copy_cells,
    random_window,
    window_rows,
)

SLOT = 1
UNTOUCHED = -7
HALF = torch.bfloat16


@dataclass(frozen=True)
class Road:
    """The three ops of a layer."""

    prepare: Callable[..., None]
    choose: Callable[..., None]
    attend: Callable[..., None]


@dataclass(frozen=True)
class ReadResult:
    """What a read leaves."""

    out: torch.Tensor  # bfloat16 [rows, query_width]
    query: torch.Tensor  # bfloat16 [rows, query_heads, head_dim]
    index_query: torch.Tensor | None  # float32 [rows, indexer heads, indexer head_dim]
    chosen: torch.Tensor | None  # int32 [rows, top_blocks]
    cells: AttentionCells


def read_case(
    shape: AttentionRowsShape,
    position: int,
    rows: int,
    cells: int,
    kind: CellKind = CellKind.F32,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> AttentionWindow:
    """One layer's read of `rows` rows from `position` on; cells that the read writes are broken before it."""
    half = 4 if shape.head_dim < 128 else 32
    case = random_window(shape, [(SLOT, position, rows)], cells, half=half, kind=kind, device=device, seed=seed)
    break_cells(case.cells, SLOT, position, 1 if shape.indexer is None else shape.indexer.ratio)
    return case


def run_read(road: Road, case: AttentionWindow, position: int, ends: list[int], most_scored: int = 64) -> ReadResult:
    """The case's rows from `position` on, in pieces that end at `ends`, at most so many of them scored together."""
    shape, cells, device = case.layer.shape, copy_cells(case.cells), case.projected.qkv.device
    results = []
    for begin, end in zip([0, *ends], ends, strict=False):
        rows = window_rows([(SLOT, position + begin, end - begin)], 0, device)
        projected = ProjectedRows(
            *(None if part is None else part[begin:end] for part in (case.projected.qkv, case.projected.index))
        )
        work, place = broken_work(end - begin, shape, cells, most_scored), position + begin
        out = torch.full((end - begin, shape.query_width), float("nan"), dtype=HALF, device=device)
        road.prepare(projected, rows, case.rotation, cells, case.layer, work)
        if shape.indexer is not None:
            road.choose(place, SLOT, cells, shape, work)
        road.attend(projected, place, SLOT, cells, shape, work, out)
        chosen = None if work.choice is None else work.choice.chosen
        results.append((out, work.query, work.index_query, chosen))
    joined = [None if part[0] is None else torch.cat(part) for part in zip(*results, strict=True)]
    return ReadResult(*joined, cells)


def broken_work(rows: int, shape: AttentionRowsShape, cells: AttentionCells, most_scored: int) -> AttentionReadWork:
    """Work of a piece: NaN and negative numbers everywhere, room for the scores of so many rows."""
    work = AttentionReadWork.empty(rows, shape, cells.count, cells.kind, cells.keys.codes.device)
    if work.choice is not None:
        room = {name: getattr(work.choice, name)[:most_scored] for name in ("scores", "greatest", "groups")}
        choice = replace(work.choice, **room)
        for part in vars(choice).values():
            part.fill_(float("nan") if part.is_floating_point() else UNTOUCHED)
        work = replace(work, choice=choice)
    for part in (work.query, work.keys, work.values, work.index_query):
        if part is not None:
            part.fill_(float("nan"))
    return work


def check_cuts(road: Road, case: AttentionWindow, position: int, ends: list[int], most_scored: int = 64) -> ReadResult:
    """The read at once has the bits, rows, choices and cells, of its pieces and of rows that are scored apart."""
    rows = case.rows.count
    whole = run_read(road, case, position, [rows], 2048)
    parts = run_read(road, case, position, ends, most_scored)
    assert not bool(whole.out.isnan().any()), "rows that saw what they must not"
    assert torch.equal(whole.out.view(torch.int16), parts.out.view(torch.int16)), "rows have other bits"
    assert whole.chosen is None or torch.equal(whole.chosen, parts.chosen), "rows choose other blocks"
    of_parts = cell_tensors(parts.cells)
    for name, part in cell_tensors(whole.cells).items():
        assert torch.equal(part.nan_to_num(), of_parts[name].nan_to_num()), f"other {name}"
    return whole


def check_choices(result: ReadResult, position: int, shape: AttentionRowsShape, rows: list[int]) -> int:
    """These rows' choices are right by float64 scores, up to what products of 2^-15 leave open.

    Returns how many rows choose other blocks than float32 scores tell.
    """
    indexer = shape.indexer
    assert indexer is not None and result.chosen is not None and result.index_query is not None
    assert result.cells.pooled is not None
    others = 0
    for row in rows:
        complete, chosen = (position + row + 1) // indexer.ratio, result.chosen[row].long()
        if position + row < indexer.dense_positions:
            assert bool((chosen == UNTOUCHED).all()), f"row {row} chooses nothing"
            continue
        assert bool((chosen.diff() > 0).all()) and int(chosen[0]) >= 0 and int(chosen[-1]) < complete, f"row {row}"
        scores = exact_scores(result.index_query[row], result.cells.pooled[SLOT, :complete], indexer)
        is_chosen = torch.zeros(complete, dtype=torch.bool, device=scores.device)
        is_chosen[chosen] = True
        lost = float(scores[~is_chosen].max() - scores[is_chosen].min())
        assert lost <= 2**-15 * float(scores.max()), f"row {row} takes a block that is {lost} worse"
        others += not torch.equal(best_blocks(scores.float(), indexer.top_blocks).long(), chosen)
    return others


def exact_scores(query: torch.Tensor, keys: torch.Tensor, indexer: IndexerRowsShape) -> torch.Tensor:
    """float64 [blocks] of a row's query [heads, head_dim] and block keys [blocks, head_dim]."""
    return (keys.double() @ query.double().t()).clamp_min(0).sum(dim=-1) / indexer.head_dim**0.5


def exact_row(result: ReadResult, case: AttentionWindow, position: int, row: int, *, is_rounded: bool) -> torch.Tensor:
    """A row in float64, of its own choice: [query_width]; with cells as they are, or rounded as a read rounds them."""
    shape, own, kind = case.layer.shape, position + row, result.cells.kind
    seen = torch.arange(own + 1, device=result.out.device)
    if shape.indexer is not None and own >= shape.indexer.dense_positions:
        assert result.chosen is not None
        seen = chosen_cells(result.chosen[row], own, shape.indexer)
    keys, values = (
        plain_heads(code, side[SLOT, seen], shape.head_dim)
        for code, side in ((kind.keys, result.cells.keys), (kind.values, result.cells.values))
    )
    if is_rounded:
        keys, values = keys.to(HALF), values.to(HALF)
    query = result.query[row].double().view(shape.kv_heads, shape.group, shape.head_dim)
    shares = torch.softmax(query @ keys.double().permute(1, 2, 0), dim=-1)
    out = (shares @ values.double().transpose(0, 1)).flatten()
    if shape.has_output_gate:
        heads = case.projected.qkv[row, : 2 * shape.query_width].unflatten(0, (shape.query_heads, 2, shape.head_dim))
        out = out * torch.sigmoid(heads[:, 1].double().flatten())
    return out


def plain_heads(code: CellCode, rows: CellRows, head_dim: int) -> torch.Tensor:
    """float32 [..., head_dim]: decoded, and rotated back."""
    decoded = decode(code, rows, head_dim)
    return rotate(decoded) if code.is_rotated else decoded


def check_values(result: ReadResult, case: AttentionWindow, position: int, rows: list[int]) -> tuple[float, float]:
    """(how far these rows are from float64 over the same cells, how far rounding cells alone is), relative."""
    wanted = torch.stack([exact_row(result, case, position, row, is_rounded=False) for row in rows])
    rounded = torch.stack([exact_row(result, case, position, row, is_rounded=True) for row in rows])
    found = result.out[rows].double()
    error, floor = (float((each - wanted).norm() / wanted.norm()) for each in (found, rounded.to(HALF).double()))
    assert error < 1.5 * floor + 1e-3, f"rows are {error} from float64, where rounded cells and rows are {floor}"
    return error, floor


def check_needle(
    road: Road, shape: AttentionRowsShape, context: int, rows: int, hidden: int, device: torch.device | str = "cpu"
) -> None:
    """The last `rows` rows of a context, a block or more, all choose the block that ends at `hidden`.

    All other blocks are random. The hidden one's raw keys and the queries have a direction in common beside noise, in
    the values that are not turned.
    """
    case, indexer = read_case(shape, context - rows, rows, context, device=device), shape.indexer
    qkv, index, dim = case.projected.qkv, case.projected.index, 0 if indexer is None else indexer.head_dim
    assert indexer is not None and index is not None
    direction = 4.0 - 8.0 * (torch.arange(dim, device=device) % 2)
    direction[: 2 * case.rotation.half] = 0.0
    first, needle = hidden + 1 - indexer.ratio, index[: indexer.ratio].clone()
    needle[:, -dim:] += direction
    index[:, :-dim] += direction.repeat(indexer.heads)
    work = broken_work(indexer.ratio, shape, case.cells, 64)
    of_block = window_rows([(SLOT, first, indexer.ratio)], 0, device)
    projected = ProjectedRows(qkv[: indexer.ratio], needle)
    road.prepare(projected, of_block, case.rotation, case.cells, case.layer, work)
    work = broken_work(rows, shape, case.cells, rows)
    road.prepare(case.projected, case.rows, case.rotation, case.cells, case.layer, work)
    road.choose(context - rows, SLOT, case.cells, shape, work)
    assert work.choice is not None
    found = int((work.choice.chosen == hidden // indexer.ratio).any(dim=1).sum())
    assert found == rows, f"{found} of {rows} rows at {context} choose the block that ends at {hidden}"


SELECTIONS = ("many", "few", "one", "clustered", "broken")


def scores_to_select(values: str, rows: int, step: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """float32 [rows, step] with no ties, many, ties alone, all of the best in some groups, no numbers."""
    scores = torch.rand(rows, step, generator=torch.Generator(device).manual_seed(step), device=device)
    if values == "few":
        scores.mul_(3).floor_()
    elif values == "one":
        scores.fill_(0.25)
    elif values == "clustered":
        scores.view(rows, -1, 16)[:, ::3] += 1.0
    elif values == "broken":
        scores[:, ::3], scores[:, 1::3] = float("nan"), float("inf")
    return scores


def greatest_scores(scores: torch.Tensor, complete: list[int]) -> torch.Tensor:
    """float32 [rows, step / GROUP_BLOCKS] of scores [rows, step], of which so many count."""
    counts = torch.tensor(complete, device=scores.device)[:, None]
    counted = torch.where(torch.arange(scores.shape[1], device=scores.device) < counts, scores, 0.0)
    return counted.unflatten(1, (-1, GROUP_BLOCKS)).amax(dim=2)


def assert_selected(values: str, scores: torch.Tensor, chosen: torch.Tensor, complete: list[int]) -> None:
    """Exactly the best of each row's complete blocks, rising; where scores are no numbers, complete ones."""
    for row, count in enumerate(complete):
        of_row = chosen[row]
        assert bool((of_row.diff() > 0).all()) and int(of_row[0]) >= 0 and int(of_row[-1]) < count, f"row {row}"
        if values != "broken":
            assert torch.equal(of_row, best_blocks(scores[row, :count], chosen.shape[1])), f"{values}: row {row}"
