"""The n-gram embedding with its state: the last token ids and the convolution's tail. Knows no family and no file."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.models.blocks import ngram_embedding as block
from strata.models.mixers.base import RowsInfo
from strata.models.weights import TableGather


@dataclass
class NgramState:
    """Tensors here are replaced, never written in place, so a clone may share them."""

    history: torch.Tensor  # [ngram_size - 1] int64: the last token ids
    conv_tail: torch.Tensor  # [conv tail rows, streams * hidden]: the last normed values

    def bytes_used(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.history, self.conv_tail))

    def clone(self) -> "NgramState":
        return NgramState(self.history, self.conv_tail)


@dataclass(frozen=True)
class NgramPending:
    """Per slot, the history and the conv tail followed by the window's rows: a later tail is a slice of them."""

    tokens: list[torch.Tensor]  # each [ngram_size - 1 + rows]
    extended: list[torch.Tensor]  # each [conv tail rows + rows, streams * hidden]


class NgramPart:
    """See `StatefulPart`; what it returns is added to the streams."""

    def __init__(self, weights: block.NgramWeights, shape: block.NgramShape, table: TableGather) -> None:
        self.weights = weights
        self.shape = shape
        self.table = table

    def new_state(self) -> NgramState:
        like = self.weights.conv
        tail = like.new_zeros(self.shape.conv_tail_rows, like.shape[1])
        return NgramState(block.first_history(self.shape), tail)

    def read(self, x: torch.Tensor, rows: RowsInfo, state: NgramState) -> torch.Tensor:
        added, pending = self.window(x, rows, [state])
        self.commit(pending, 0, state, x.shape[0])
        return added

    def window(
        self, x: torch.Tensor, rows: RowsInfo, states: Sequence[NgramState]
    ) -> tuple[torch.Tensor, NgramPending]:
        slots = list(zip(states, rows.bounds, strict=True))
        tokens = [torch.cat((state.history, rows.token_ids[start:stop])) for state, (start, stop) in slots]
        row_ids = torch.cat([block.table_row_ids(slot_tokens, self.shape) for slot_tokens in tokens])
        embeddings = self.table(row_ids.flatten()).view(x.shape[0], -1)
        gated, normed = block.ngram_values(x, embeddings, self.weights, self.shape)
        extended = [torch.cat((state.conv_tail, normed[start:stop])) for state, (start, stop) in slots]
        added = [
            block.ngram_output(gated[start:stop], slot_extended, self.weights, self.shape)
            for (_, (start, stop)), slot_extended in zip(slots, extended, strict=True)
        ]
        return torch.cat(added), NgramPending(tokens, extended)

    def commit(self, pending: NgramPending, slot: int, state: NgramState, accepted_rows: int) -> None:
        history, tail = state.history.shape[0], state.conv_tail.shape[0]
        state.history = pending.tokens[slot][accepted_rows : accepted_rows + history].clone()
        state.conv_tail = pending.extended[slot][accepted_rows : accepted_rows + tail].clone()
