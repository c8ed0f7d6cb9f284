"""The n-gram embedding of rows as it is defined, in torch, row by row. Knows no block, no stride and no launch."""

import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from strata.kernels.checks import plain_rows
from strata.kernels.embed_rows.reference import pick_rows
from strata.kernels.expert_plan.tables import OPEN, RAISED
from strata.kernels.ngram_rows.arguments import AskedTable, NgramHash, NgramRowsShape, NgramVectors
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.packed import PackedMatrix


def ngram_gather(rows: WindowRows, history: torch.Tensor, table: PackedMatrix, hash: NgramHash, out: RowsOut) -> None:
    """See the package. Raises ValueError where quantized rows are wanted."""
    plain = plain_rows("out", out)
    for row, ids in _ids_by_row(rows, history, hash):
        plain[row] = pick_rows(table, ids).decode().flatten()


def ngram_ask(rows: WindowRows, history: torch.Tensor, hash: NgramHash, asked: AskedTable) -> None:
    """See the package; the request first, the door last."""
    mailbox, state = asked.mailbox, asked.state
    if mailbox.gate is not None:
        mailbox.gate.zero_()
    wanted = torch.full((rows.count, hash.heads), -1, dtype=torch.int64)
    used = list(_ids_by_row(rows, history, hash))
    for row, ids in used:
        wanted[row] = ids
    places = torch.arange(wanted.numel())
    mailbox.entries[: wanted.numel()] = torch.stack((wanted.flatten(), places), dim=1).int()
    mailbox.header.copy_(torch.tensor([asked.index, rows.count, wanted.numel()], dtype=torch.int32))
    if used:
        state.number.add_(1)
        state.times[0] -= time.monotonic_ns()  # collecting adds its start
        mailbox.door.copy_(state.number)
    if mailbox.gate is not None and (not used or int(mailbox.done) == RAISED):
        mailbox.gate.fill_(OPEN)


def ngram_collect(rows: WindowRows, asked: AskedTable, out: RowsOut) -> None:
    """See the package; waits in Python. Raises ValueError where quantized rows are wanted."""
    plain, state = plain_rows("out", out), asked.state
    started, number = time.monotonic_ns(), int(state.number)
    while int(asked.mailbox.done) < number:
        time.sleep(0)
    state.times.add_(torch.tensor([started, time.monotonic_ns() - started], device=state.times.device))
    for segment in rows.used_segments():
        of_segment = slice(segment.start, segment.start + segment.count)
        plain[of_segment] = asked.mailbox.out[of_segment].flatten(1).to(plain.device)


def _ids_by_row(rows: WindowRows, history: torch.Tensor, hash: NgramHash) -> Iterator[tuple[int, torch.Tensor]]:
    """Every used row and its rows of the table, int64 [heads]."""
    for segment in rows.used_segments():
        of_segment = slice(segment.start, segment.start + segment.count)
        tokens = torch.cat((history[segment.slot], rows.tokens[of_segment])).tolist()
        for step in range(segment.count):
            yield segment.start + step, table_row_ids(tokens[step : step + hash.ngram_size], hash)


def table_row_ids(tokens: list[int], hash: NgramHash) -> torch.Tensor:
    """int64 [heads]: the table rows of the last token of `tokens` [ngram_size], oldest first.

    From the first end-of-text on (going back), every older token counts as end-of-text.
    """
    multipliers = hash.multipliers.cpu()
    back = torch.tensor(tokens[-1])
    mixed = back * multipliers[0]
    is_over = False
    by_order = []
    for reach in range(1, hash.ngram_size):
        back = torch.tensor(hash.end_of_text if is_over else tokens[-1 - reach])
        is_over = is_over or int(back) == hash.end_of_text
        mixed = mixed ^ (back * multipliers[reach])
        by_order.append(mixed)
    of_heads = torch.stack(by_order).repeat_interleave(hash.heads_per_ngram)
    return of_heads % hash.head_sizes.cpu() + hash.head_starts.cpu()


def ngram_finish(
    products: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: WindowRows,
    tail: torch.Tensor,
    vectors: NgramVectors,
    shape: NgramRowsShape,
    normed: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """See the package; products: key, value, query_normed."""
    key, value, query_normed = products
    for segment in rows.used_segments():
        of_segment = range(segment.start, segment.start + segment.count)
        for row in of_segment:
            gated = _gated(key[row], value[row], query_normed[row], vectors, shape)
            out[row] = gated
            normed[row] = _stream_norms(gated, shape) * vectors.conv_scale
        extended = torch.cat((tail[segment.slot], normed[segment.start : segment.start + segment.count]))
        for step, row in enumerate(of_segment):
            summed = extended[step] * vectors.conv[0]
            for tap in range(1, shape.conv_kernel):
                summed = summed + extended[step + tap * shape.dilation] * vectors.conv[tap]
            out[row] = out[row] + F.silu(summed)


def commit_ngram(
    history: torch.Tensor, tails: torch.Tensor, normed: torch.Tensor, rows: WindowRows, accepted: torch.Tensor
) -> None:
    """See the package."""
    accepted_rows = accepted.tolist()
    for segment in rows.used_segments():
        count, slot = accepted_rows[segment.index], segment.slot
        of_segment = slice(segment.start, segment.start + count)
        history[slot] = torch.cat((history[slot], rows.tokens[of_segment]))[count:]
        for layer in range(tails.shape[0]):
            tails[layer, slot] = torch.cat((tails[layer, slot], normed[layer, of_segment]))[count:]


def _gated(
    key: torch.Tensor, value: torch.Tensor, query_normed: torch.Tensor, vectors: NgramVectors, shape: NgramRowsShape
) -> torch.Tensor:
    """One row's value [hidden] times each stream's strength -> [width]."""
    product = _stream_norms(key, shape) * vectors.key_scale * query_normed
    match = product.view(shape.streams, shape.hidden).sum(dim=-1, keepdim=True) / shape.hidden**0.5
    gate = match.abs().clamp_min(1e-6).sqrt() * match.sign()
    return ((1.0 + torch.exp(-gate)).reciprocal() * value).flatten()


def _stream_norms(x: torch.Tensor, shape: NgramRowsShape) -> torch.Tensor:
    """x [width] with each stream divided by the root of its mean square."""
    streams = x.view(shape.streams, shape.hidden)
    return (streams * torch.rsqrt((streams * streams).mean(dim=-1, keepdim=True) + shape.eps)).flatten()
