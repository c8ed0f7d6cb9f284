"""Adding to residual streams on a GPU: sums bit for bit, norms within rounding, each row alone as in company; times."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.residual_streams import ExpertRows, MixerRows, Nothing, add_and_norm, reference
from tests.kernels.random_matrices import random_rows
from tests.kernels.stream_cases import StreamSizes, additions, first_rows, moved, norm_scale, room

EPS = 1e-6
PUBLISHED = StreamSizes(rows=0, streams=4, hidden=2560, ranks=10)
EVERY_KIND = tuple(additions(0, StreamSizes(1, 4, 32, 1)))
SHAPES = (
    (PUBLISHED, EVERY_KIND),
    (StreamSizes(rows=0, streams=1, hidden=2048, ranks=8), ("mixer", "experts and gated")),
    (StreamSizes(rows=0, streams=1, hidden=576, ranks=2), ("mixer",)),
    (StreamSizes(rows=0, streams=4, hidden=64, ranks=4), ("experts and gated", "values")),
)


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Every kind of addition in the published sizes, some in those of decoders and of tiny models."""
    for shape, kinds in SHAPES:
        for rows in (1, 3, 12, 32):
            for kind in kinds:
                sizes = replace(shape, rows=rows)
                yield f"add and norm, {kind}, {sizes}", partial(_check, device, sizes, kind)
    for kind in ("mixer", "experts and gated"):
        yield f"add and norm, {kind}: a row alone and among 31 others", partial(_check_company, device, kind)
    yield "add and norm: quantized rows side by side for the matrix units", partial(_check_units, device)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Published sizes, plain and quantized; bytes: everything read or written once."""
    scale = norm_scale(1, PUBLISHED.width).to(device)
    for rows in (1, 4, 8, 32):
        sizes = replace(PUBLISHED, rows=rows)
        streams, out = torch.zeros(rows, sizes.width, device=device), room(rows, sizes.width, device, True, True)
        for kind, addition in additions(2, sizes).items():
            if not isinstance(addition, MixerRows | ExpertRows | Nothing):
                continue
            added = {"nothing": 0, "mixer": 1, "experts": 10}.get(kind, 11)
            moved_values = rows * (sizes.hidden * added + sizes.width * (3 if added else 2)) + sizes.width
            of_kind = moved(addition, device)
            call = partial(add_and_norm, streams, of_kind, scale, EPS, sizes.streams, out)
            yield f"add and norm, {kind}, {rows} rows", call, 4 * moved_values + rows * sizes.width * 9 // 8


def _check(device: torch.device, sizes: StreamSizes, kind: str) -> None:
    from strata.kernels.packed_rows.activations import quantize_rows

    addition, streams, scale = (
        additions(5, sizes)[kind],
        random_rows(6, sizes.rows, sizes.width),
        norm_scale(7, sizes.width),
    )
    found, wanted = streams.clone().to(device), room(sizes.rows, sizes.width, torch.device("cpu"))
    out = room(sizes.rows, sizes.width, device, True, True)
    add_and_norm(found, moved(addition, device), scale.to(device), EPS, sizes.streams, out)
    reference.add_and_norm(streams, addition, scale, EPS, sizes.streams, wanted)
    wrong = int((found.cpu().view(torch.int32) != streams.view(torch.int32)).sum())
    assert wrong == 0, f"{wrong} of {streams.numel()} sums have other bits than the twin's"
    assert out.plain is not None and out.quantized is not None and wanted.plain is not None
    torch.testing.assert_close(out.plain.cpu(), wanted.plain, rtol=3e-6, atol=1e-30)
    quantized = quantize_rows(out.plain, LaunchShape())
    for name in ("values", "records"):
        wrong = int((getattr(out.quantized, name) != getattr(quantized, name)).sum())
        assert wrong == 0, f"{wrong} of the quantized rows' {name} are not those of the plain rows"


def _check_company(device: torch.device, kind: str) -> None:
    """Row 0 is unused and holds NaN: no other row may notice."""
    sizes = replace(PUBLISHED, rows=32)
    addition, scale = moved(additions(8, sizes)[kind], device), norm_scale(9, sizes.width).to(device)
    before = random_rows(10, 32, sizes.width).to(device)
    before[0] = float("nan")
    streams, together = before.clone(), room(32, sizes.width, device)
    add_and_norm(streams, addition, scale, EPS, sizes.streams, together)
    for row in range(1, 32):
        own, alone = before[row : row + 1].clone(), room(1, sizes.width, device)
        add_and_norm(own, first_rows(addition, row, row + 1), scale, EPS, sizes.streams, alone)
        assert torch.equal(own[0], streams[row]), f"row {row}: sums depend on company"
        assert alone.plain is not None and together.plain is not None
        assert torch.equal(alone.plain[0], together.plain[row]), f"row {row}: norms depend on company"


def _check_units(device: torch.device) -> None:
    streams, scale, blocks = random_rows(1, 9, 10240).to(device), norm_scale(2, 10240).to(device), 320
    made = [Activations.empty(9, blocks, device, LaunchShape(rows=8, uses_matrix_units=unit)) for unit in (False, True)]
    for each in made:
        add_and_norm(streams.clone(), Nothing(), scale, EPS, 4, RowsOut(None, each))
    by_row, side_by_side = made
    values = side_by_side.values.reshape(blocks, 9, 4).transpose(0, 1)
    assert torch.equal(by_row.values.reshape(9, blocks, 4), values), "q lies elsewhere than the matrix units read it"
    records = side_by_side.records.reshape(blocks, 9).T
    assert torch.equal(by_row.records.reshape(9, blocks), records), (
        "records lie elsewhere than the matrix units read them"
    )
