"""Every mixer keeps the contract of `strata.models.mixers.base` by itself: reads, windows and commits agree."""

from typing import Any

import pytest
import torch

from strata.models.blocks.attention import AttentionShape, AttentionWeights
from strata.models.blocks.gated_delta_net import DeltaNetShape, DeltaNetWeights
from strata.models.blocks.indexed_attention import IndexerShape, IndexerWeights
from strata.models.blocks.ngram_embedding import NgramShape, NgramWeights
from strata.models.blocks.rotary import inverse_frequencies, rotation_at
from strata.models.mixers.attention import AttentionMixer
from strata.models.mixers.base import RowsInfo
from strata.models.mixers.delta_net import DeltaNetMixer, SlotLayout
from strata.models.mixers.indexed_attention import IndexedAttentionMixer
from strata.models.mixers.ngram import NgramPart

HIDDEN, ROWS = 12, 50
FREQUENCIES = inverse_frequencies(4, 1e4)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64) * shape[-1] ** -0.5


def mixer_of(kind: str) -> Any:
    if kind == "delta_net":
        shape = DeltaNetShape(2, 4, 5, 6, 4)
        widths = shape.conv_width + shape.value_width + 8
        return DeltaNetMixer(
            DeltaNetWeights(random(widths, HIDDEN), random(4, shape.conv_width), -random(4).abs(), random(4),
                            random(6) + 1, random(HIDDEN, shape.value_width)), shape)  # fmt: skip
    if kind == "ngram":
        ngram = NgramShape(40, 3, 2, 12, 30, 1, 5, 0, 3, 3)
        table = random(ngram.table_rows, 3)
        scales = [random(HIDDEN) + 1 for _ in range(3)]
        return NgramPart(
            NgramWeights(random(HIDDEN, 12), random(4, 12), *scales, random(3, HIDDEN)), ngram, lambda ids: table[ids]
        )
    shape = AttentionShape(4, 2, 8, has_output_gate=True)
    weights = AttentionWeights(random(64 + 32, HIDDEN), random(HIDDEN, 32), random(8) + 1, random(8) + 1)
    if kind == "attention":
        return AttentionMixer(weights, shape)
    indexer = IndexerShape(2, 6, 8, 4)
    indexer_weights = IndexerWeights(random(18, HIDDEN), random(6) + 1, random(6) + 1)
    return IndexedAttentionMixer(weights, shape, indexer_weights, indexer, FREQUENCIES)


def info(tokens: torch.Tensor, first_positions: list[int], counts: list[int]) -> RowsInfo:
    positions = torch.cat([torch.arange(p, p + n) for p, n in zip(first_positions, counts, strict=True)])
    ends = torch.tensor(counts).cumsum(0).tolist()
    bounds = tuple((end - count, end) for end, count in zip(ends, counts, strict=True))
    return RowsInfo(tokens, positions, rotation_at(positions, FREQUENCIES, torch.float64), bounds)


@pytest.mark.parametrize("kind", ["delta_net", "ngram", "attention", "indexed_attention"])
def test_reads_windows_and_commits_agree(kind: str) -> None:
    mixer, x, tokens = mixer_of(kind), random(ROWS, HIDDEN), torch.randint(0, 40, (ROWS,))
    whole_state = mixer.new_state()
    whole = mixer.read(x, info(tokens, [0], [ROWS]), whole_state)
    first, second = mixer.new_state(), mixer.new_state()
    mixer.read(x[:20], info(tokens[:20], [0], [20]), first)
    mixer.read(x[:33], info(tokens[:33], [0], [33]), second)
    rows = torch.cat((torch.arange(20, 29), torch.arange(33, 37)))
    output, pending = mixer.window(x[rows], info(tokens[rows], [20, 33], [9, 4]), [first, second])
    assert (output - whole[rows]).abs().max() < 1e-12
    mixer.commit(pending, 0, first, 3)
    mixer.commit(pending, 1, second, 4)
    for state, start in ((first, 23), (second, 37)):
        rest = mixer.read(x[start:], info(tokens[start:], [start], [ROWS - start]), state)
        assert (rest - whole[start:]).abs().max() < 1e-12
        assert state.bytes_used() == whole_state.bytes_used()


def test_layout_pads_slots_of_different_lengths() -> None:
    layout, rows = SlotLayout([(0, 2), (2, 5), (5, 6)]), torch.randn(6, 4)
    by_slot = layout.to_slots(rows)
    assert by_slot.shape == (3, 3, 4)
    assert torch.equal(by_slot[0, :2], rows[:2]) and torch.equal(by_slot[2, 1:], torch.zeros(2, 4))
    assert torch.equal(layout.to_rows(by_slot), rows)
