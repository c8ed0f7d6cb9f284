"""Rows of a packed table on a GPU: the bits of the decoded table in every code and at the end of a large one; times."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.embed_rows import embed_rows
from strata.kernels.embed_rows.reference import pick_rows
from tests.gpu.weights import random_dense
from tests.kernels.random_matrices import KINDS, Kind, on_device, random_matrix

VOCABULARY, HIDDEN, STREAMS = 248_320, 2560, 4
KIND = {kind.name: kind for kind in KINDS}


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Every code in a table of two matrices, and the published vocabulary."""
    for kind in KINDS:
        yield f"embedding in {kind.name}", partial(_check, device, kind)
    for name in ("q4_0", "q8_0", "bf16"):
        yield f"embedding in {name}, the whole vocabulary", partial(_check_large, device, KIND[name])


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """The published vocabulary; bytes: the rows once, and each stream that is written."""
    for name in ("q4_0", "q8_0", "bf16"):
        table = [random_dense(KIND[name].layout(VOCABULARY, HIDDEN))]
        row_bytes = int(HIDDEN * table[0].layout.bits_per_weight / 8) + 4 * STREAMS * HIDDEN
        for rows in (1, 8, 32):
            tokens = torch.randint(0, VOCABULARY, (rows,), device=device, dtype=torch.int32)
            out = torch.empty(rows, STREAMS * HIDDEN, device=device)
            call = partial(embed_rows, table, tokens, out, STREAMS)
            yield f"embedding in {name}, {rows} rows", call, rows * row_bytes


def _compare(found: torch.Tensor, wanted: torch.Tensor, streams: int) -> None:
    """found on the device [rows, streams * hidden], wanted in main memory [rows, hidden]."""
    for stream, values in enumerate(found.cpu().unflatten(1, (streams, -1)).unbind(1)):
        wrong = int((values.contiguous().view(torch.int32) != wanted.view(torch.int32)).sum())
        assert wrong == 0, f"stream {stream}: {wrong} of {wanted.numel()} values have other bits than the decoded table"


def _check(device: torch.device, kind: Kind) -> None:
    columns = 2557 if kind.step == 1 else HIDDEN
    table = [random_matrix(seed, kind.layout(37, columns), post_scale) for seed, post_scale in ((1, 1.0), (2, 0.37))]
    tokens = torch.arange(74, dtype=torch.int32).roll(40)[:32]
    tokens = torch.cat((tokens, torch.tensor([73, 74, -1], dtype=torch.int32)))
    out = torch.zeros(len(tokens), 2 * columns, device=device)
    embed_rows([on_device(matrix, device) for matrix in table], tokens.to(device), out, 2)
    assert out[-2:].isnan().all(), "tokens that the table lacks gave numbers"
    wanted = torch.cat([matrix.decode() for matrix in table])[tokens[:-2].long()]
    _compare(out[:-2], wanted, 2)


def _check_large(device: torch.device, kind: Kind) -> None:
    table = random_dense(kind.layout(VOCABULARY, HIDDEN))
    tokens = torch.tensor([0, 15, 16, 123_456, VOCABULARY - 17, VOCABULARY - 1], dtype=torch.int32, device=device)
    out = torch.empty(len(tokens), STREAMS * HIDDEN, device=device)
    embed_rows([table], tokens, out, STREAMS)
    _compare(out, pick_rows(table, tokens.long()).decode(), STREAMS)
