"""The n-gram twin for windows is the model's block: hashes, gates, convolution and commits of 0 .. all rows."""

import pytest
import torch

from strata.kernels.ngram_rows import (
    NgramHash,
    NgramRowsShape,
    NgramVectors,
    commit_ngram,
    ngram_finish,
    ngram_gather,
)
from strata.kernels.ngram_rows.arguments import check_commit
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.models.blocks import ngram_embedding as block
from strata.models.blocks.norm import grouped_rms_norm
from strata.models.blocks.rotary import Rotation
from strata.models.mixers.base import RowsInfo
from strata.models.mixers.ngram import NgramPart, NgramState
from strata.models.weights import ResidentTable
from tests.kernels.ngram_cases import check_runs
from tests.kernels.random_matrices import KINDS, random_matrix
from tests.kernels.window_cases import window_of

SEGMENTS = [(2, 4), (0, 1), (3, 0), (1, 2)]  # slot 3 has no rows; one row of the bucket is unused
BUCKET, USED, SLOTS = 8, 7, 4
HIDDEN, STREAMS, END = 24, 2, 3
BLOCK_SHAPE = block.NgramShape(
    vocabulary_size=8, ngram_size=3, heads_per_ngram=2, embed_dim=64, table_size_base=50, table_size_multiple=8,
    seed=7, end_of_text_id=END, conv_kernel=3, streams=STREAMS,
)  # fmt: skip
SHAPE = NgramRowsShape(STREAMS, HIDDEN, conv_kernel=3, dilation=3)
KIND = {kind.name: kind for kind in KINDS}


def weights_of(seed: int) -> block.NgramWeights:
    generator = torch.Generator().manual_seed(seed)
    width, embed = STREAMS * HIDDEN, BLOCK_SHAPE.embed_dim
    scales = (1.0 + 0.1 * torch.randn(width, generator=generator) for _ in range(3))
    key, value = (torch.randn(n, embed, generator=generator) * 0.2 for n in (width, HIDDEN))
    return block.NgramWeights(key, value, *scales, torch.randn(3, width, generator=generator) * 0.5)


def hash_of() -> NgramHash:
    return NgramHash.of(BLOCK_SHAPE.multipliers, BLOCK_SHAPE.head_sizes, END, "cpu")


@pytest.mark.parametrize("accepted", [[0, 0, 0, 0], [1, 1, 2, 0], [3, 0, 0, 1], [4, 1, 0, 2]])
def test_window_and_commit_are_those_of_the_block(accepted: list[int]) -> None:
    table = random_matrix(5, KIND["bf16"].layout(BLOCK_SHAPE.table_rows, BLOCK_SHAPE.embed_dim // BLOCK_SHAPE.heads))
    weights, generator = weights_of(1), torch.Generator().manual_seed(2)
    part = NgramPart(weights, BLOCK_SHAPE, ResidentTable(table.decode()))
    history = torch.randint(8, (SLOTS, 2), generator=generator).int()
    tails = torch.randn(1, SLOTS, SHAPE.tail_rows, SHAPE.width, generator=generator)
    streams = torch.randn(BUCKET, SHAPE.width, generator=generator)
    rows = window_of(SEGMENTS, BUCKET, vocabulary=8, seed=3)
    assert bool((rows.tokens[:USED] == END).any()), "no n-gram reaches an end of text"

    used = [(slot, count) for slot, count in SEGMENTS if count]
    states = [NgramState(history[slot].long(), tails[0, slot].clone()) for slot, _ in used]
    info = RowsInfo(rows.tokens[:USED].long(), torch.empty(0), Rotation(*torch.empty(2, 0)), ((0, 4), (4, 5), (5, 7)))
    wanted, pending = part.window(streams[:USED], info, states)

    embeddings = torch.full((BUCKET, BLOCK_SHAPE.embed_dim), 7.0)
    ngram_gather(rows, history, table, hash_of(), RowsOut(embeddings, None))
    assert bool((embeddings[USED:] == 7.0).all()), "an unused row was written"
    query = grouped_rms_norm(streams, weights.query_scale, STREAMS, SHAPE.eps)
    normed, out = torch.full((2, 1, BUCKET, SHAPE.width), 7.0)
    vectors = NgramVectors(weights.key_scale, weights.conv_scale, weights.conv)
    key, value = embeddings @ weights.key.T, embeddings @ weights.value.T
    ngram_finish(key, value, query, rows, tails[0], vectors, SHAPE, normed[0], out[0])
    torch.testing.assert_close(out[0, :USED], wanted, rtol=1e-5, atol=1e-5)

    before = history.clone(), tails.clone()
    commit_ngram(history, tails, normed, rows, torch.tensor(accepted).int())
    counts = [count for (_, all_rows), count in zip(SEGMENTS, accepted, strict=True) if all_rows]
    for index, ((slot, _), count) in enumerate(zip(used, counts, strict=True)):
        if count:
            part.commit(pending, index, states[index], count)
        assert history[slot].tolist() == states[index].history.tolist()
        torch.testing.assert_close(tails[0, slot], states[index].conv_tail, rtol=1e-5, atol=1e-5)
    assert torch.equal(history[3], before[0][3]) and torch.equal(tails[:, 3], before[1][:, 3])


def test_rows_one_by_one_have_the_bits_of_rows_together() -> None:
    weights, generator = weights_of(1), torch.Generator().manual_seed(2)
    vectors = NgramVectors(weights.key_scale, weights.conv_scale, weights.conv)
    key, query = torch.randn(2, 3, SHAPE.width, generator=generator)
    value = torch.randn(3, HIDDEN, generator=generator)
    tails, history = torch.randn(1, 2, SHAPE.tail_rows, SHAPE.width, generator=generator), torch.zeros(2, 2).int()
    together, normed = torch.empty(2, 3, SHAPE.width)
    ngram_finish(key, value, query, window_of([(1, 3)], 3), tails[0], vectors, SHAPE, normed, together)
    for row in range(3):
        alone, kept = torch.empty(2, 1, SHAPE.width)
        rows, only = window_of([(1, 1)], 1), slice(row, row + 1)
        ngram_finish(key[only], value[only], query[only], rows, tails[0], vectors, SHAPE, kept, alone)
        commit_ngram(history, tails, kept[None], rows, torch.ones(1).int())
        assert torch.equal(alone[0], together[row])


def test_runs_of_a_read_have_the_bits_of_its_rows_together() -> None:
    check_runs(ngram_finish, commit_ngram)


def test_what_does_not_fit_is_refused_by_name() -> None:
    table, rows = random_matrix(5, KIND["bf16"].layout(40, 16)), window_of([(0, 1)], 1)
    history, out = torch.zeros(1, 2).int(), RowsOut(torch.empty(1, 64), None)
    with pytest.raises(ValueError, match=r"history must be contiguous torch.int32 \[1, 2\], not torch.int64"):
        ngram_gather(rows, history.long(), table, hash_of(), out)
    with pytest.raises(ValueError, match=r"out.plain is missing: table rows of 16 columns"):
        ngram_gather(rows, history, table, hash_of(), RowsOut(None, None))
    with pytest.raises(ValueError, match=r"3 heads are not the same number for each order 2 .. 3"):
        ngram_gather(rows, history, table, NgramHash.of((1, 3, 5), (5, 7, 11), END, "cpu"), out)
    with pytest.raises(ValueError, match=r"accepted must be contiguous torch.int32 \[1\]"):
        check_commit(history, torch.zeros(1, 1, 6, 48), torch.zeros(1, 1, 48), rows, torch.ones(1))
