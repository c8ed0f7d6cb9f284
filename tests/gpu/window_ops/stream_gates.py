"""Gates over residual streams on a GPU: the twin's bits in several codes, again and again in the same room; times."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.stream_gates import GatesOut, reference, stream_gates
from strata.quant.packed import PackedMatrix
from tests.kernels.random_matrices import KINDS, on_device, random_matrix, random_rows
from tests.kernels.stream_cases import room, room_for_gates

KIND = {kind.name: kind for kind in KINDS}
STREAMS, HIDDEN, LOW_RANK = 4, 2560, 320
CPU = torch.device("cpu")


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """The published sizes in the codes that files have, and tiny ones; rows one by one and two a program."""
    for kind in ("q4_0", "q8_0", "bf16"):
        for rows in (1, 2, 3, 9, 32):
            check = partial(_check, device, kind, (STREAMS, HIDDEN, LOW_RANK), rows)
            yield f"gates in {kind}, {rows} rows", check
    for kind, sizes in (("f32", (4, 64, 16)), ("iq4_xs", (2, 64, 256)), ("q6_k", (3, 32, 512)), ("q2_0", (1, 96, 64))):
        yield f"gates in {kind}, streams, hidden and low rank {sizes}", partial(_check, device, kind, sizes, 5)
    for at_once in (1, 2):
        yield f"gates, {at_once} rows a program", partial(_check, device, "q4_0", (4, 256, LOW_RANK), 7, at_once)
    yield "gates: 200 turns in the same room", partial(_check_turns, device)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Published sizes; bytes: the matrix once, the normed rows and what is written."""
    from strata.kernels.stream_gates import triton

    for kind in ("q4_0", "q8_0", "bf16"):
        up = on_device(random_matrix(1, KIND[kind].layout(STREAMS * HIDDEN, LOW_RANK)), device)
        for rows, at_once in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2), (32, 2)):
            shares, normed = _inputs(2, rows, STREAMS, HIDDEN, LOW_RANK, device)
            out = room_for_gates(rows, STREAMS, up, device, both=True)
            count = up.layout.total_bytes + 4 * (shares.numel() + normed.numel()) + rows * HIDDEN * 41 // 8
            call = partial(triton.stream_gates, shares, normed, up, STREAMS, out, at_once)
            yield f"gates in {kind}, {rows} rows, {at_once} a program", call, count


def _inputs(
    seed: int, rows: int, streams: int, hidden: int, low_rank: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares whose silu and sigmoid are not all 0 or 1, and normed rows."""
    generator = torch.Generator().manual_seed(seed)
    shares = 6 * torch.randn(rows, low_rank + streams, generator=generator)
    return shares.to(device), random_rows(seed, rows, streams * hidden).to(device)


def _expected(shares: torch.Tensor, normed: torch.Tensor, up: PackedMatrix, streams: int) -> GatesOut:
    """What the twin gives in main memory."""
    rows, hidden = normed.shape[0], normed.shape[1] // streams
    out = GatesOut(room(rows, up.layout.columns, CPU), room(rows, hidden, CPU), torch.empty(rows, streams))
    reference.stream_gates(shares.cpu(), normed.cpu(), up, streams, out)
    return out


def _compare(name: str, found: torch.Tensor | None, wanted: torch.Tensor | None) -> None:
    assert found is not None and wanted is not None
    wrong = int((found.cpu().view(torch.int32) != wanted.view(torch.int32)).sum())
    assert wrong == 0, f"{name}: {wrong} of {wanted.numel()} have other bits than the twin's"


def _check(device: torch.device, kind: str, sizes: tuple[int, int, int], rows: int, at_once: int | None = None) -> None:
    from strata.kernels.packed_rows.activations import quantize_rows
    from strata.kernels.stream_gates import triton

    streams, hidden, low_rank = sizes
    up = random_matrix(rows, KIND[kind].layout(streams * hidden, low_rank), post_scale=0.37)
    shares, normed = _inputs(rows, rows, streams, hidden, low_rank, device)
    there = on_device(up, device)
    found, wanted = room_for_gates(rows, streams, up, device, both=True), _expected(shares, normed, up, streams)
    if at_once is None:
        stream_gates(shares, normed, there, streams, found)
    else:
        triton.stream_gates(shares, normed, there, streams, found, at_once)
    _compare("mixed", found.mixed.plain, wanted.mixed.plain)
    _compare("strengths", found.strengths, wanted.strengths)
    assert found.mixed.plain is not None and found.mixed.quantized is not None
    quantized = quantize_rows(found.mixed.plain, LaunchShape())
    assert torch.equal(found.mixed.quantized.values, quantized.values), "q is not that of the plain rows"
    assert torch.equal(found.mixed.quantized.records, quantized.records), "records are not those of the plain rows"


def _check_turns(device: torch.device) -> None:
    """Programs share the room for low: what a launch before left there must not show."""
    up = random_matrix(1, KIND["q4_0"].layout(STREAMS * HIDDEN, LOW_RANK))
    there, out = on_device(up, device), room_for_gates(2, STREAMS, up, device)
    inputs = [_inputs(seed, 2, STREAMS, HIDDEN, LOW_RANK, device) for seed in (1, 2)]
    wanted = [_expected(*each, up, STREAMS).mixed.plain for each in inputs]
    found = []
    for turn in range(200):
        stream_gates(*inputs[turn % 2], there, STREAMS, out)
        assert out.mixed.plain is not None
        found.append(out.mixed.plain.clone())
    for turn, mixed in enumerate(found):
        _compare(f"turn {turn}", mixed, wanted[turn % 2])
