"""The gated delta net with its state: convolution tail and delta state. Knows no family.

A read runs a tile as one chunk of the rule; a window runs it row by row for all slots side by side, and a commit
replays the accepted rows with the same operations (or takes the final state if all rows were accepted: the same bits).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.models.blocks import gated_delta_net as net
from strata.models.blocks.causal_conv import convolve, tail_rows
from strata.models.mixers.base import RowsInfo


@dataclass
class DeltaNetState:
    """Tensors here are replaced, never written in place, so a clone may share them."""

    conv_tail: torch.Tensor  # [conv_kernel - 1, conv_width]: the last rows before the convolution
    delta: torch.Tensor  # [value_heads, key_dim, value_dim]

    def bytes_used(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.conv_tail, self.delta))

    def clone(self) -> "DeltaNetState":
        return DeltaNetState(self.conv_tail, self.delta)


@dataclass(frozen=True)
class DeltaNetPending:
    """Stored inputs of a window; slots with fewer rows than `steps` are padded with rows that change nothing."""

    extended: torch.Tensor  # [slots, conv_kernel - 1 + steps, conv_width]
    rule_rows: net.DeltaRuleRows  # [slots, steps, ...]
    final: torch.Tensor  # [slots, value_heads, key_dim, value_dim]: the states if every row is accepted
    counts: tuple[int, ...]


class DeltaNetMixer:
    """See `StatefulPart`."""

    def __init__(self, weights: net.DeltaNetWeights, shape: net.DeltaNetShape) -> None:
        self.weights = weights
        self.shape = shape

    def new_state(self) -> DeltaNetState:
        shape, like = self.shape, self.weights.conv
        tail = like.new_zeros(tail_rows(shape.conv_kernel), shape.conv_width)
        return DeltaNetState(tail, like.new_zeros(shape.value_heads, shape.key_dim, shape.value_dim))

    def read(self, x: torch.Tensor, rows: RowsInfo, state: DeltaNetState) -> torch.Tensor:
        projected = net.project_rows(x, self.weights, self.shape)
        extended = torch.cat((state.conv_tail, projected.mixed))
        convolved = convolve(extended, self.weights.conv)
        inputs = net.delta_rule_inputs(convolved, projected.beta, projected.log_decay, self.shape)
        output, state.delta = net.delta_rule_chunk(inputs, state.delta)
        state.conv_tail = extended[x.shape[0] :].clone()
        return net.finish_rows(output, projected.z, self.weights, self.shape)

    def window(
        self, x: torch.Tensor, rows: RowsInfo, states: Sequence[DeltaNetState]
    ) -> tuple[torch.Tensor, DeltaNetPending]:
        projected = net.project_rows(x, self.weights, self.shape)
        layout = SlotLayout(rows.bounds)
        mixed = layout.to_slots(projected.mixed)
        extended = torch.cat((torch.stack([state.conv_tail for state in states]), mixed), dim=1)
        convolved = convolve(extended, self.weights.conv) * layout.row_mask(x)
        inputs = net.delta_rule_inputs(
            convolved, layout.to_slots(projected.beta), layout.to_slots(projected.log_decay), self.shape
        )
        output, final = net.delta_rule_steps(inputs, torch.stack([state.delta for state in states]))
        output = layout.to_rows(output)
        finished = net.finish_rows(output, projected.z, self.weights, self.shape)
        return finished, DeltaNetPending(extended, inputs, final, layout.counts)

    def commit(self, pending: DeltaNetPending, slot: int, state: DeltaNetState, accepted_rows: int) -> None:
        tail = state.conv_tail.shape[0]
        state.conv_tail = pending.extended[slot, accepted_rows : accepted_rows + tail].clone()
        if accepted_rows == pending.counts[slot]:
            state.delta = pending.final[slot].clone()
            return
        accepted = pending.rule_rows.part(slice(slot, slot + 1), slice(0, accepted_rows))
        state.delta = net.delta_rule_steps(accepted, state.delta.unsqueeze(0))[1][0]


class SlotLayout:
    """Rows of several slots one after another <-> [slots, steps, ...] padded with zero rows."""

    def __init__(self, bounds: Sequence[tuple[int, int]]) -> None:
        self.counts = tuple(stop - start for start, stop in bounds)
        self._slots = len(bounds)
        self._steps = max(self.counts)
        self._is_even = min(self.counts) == self._steps
        self._places = [slot * self._steps + step for slot, count in enumerate(self.counts) for step in range(count)]

    def to_slots(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, ...] -> [slots, steps, ...]."""
        if self._is_even:
            return rows.unflatten(0, (self._slots, self._steps))
        padded = rows.new_zeros(self._slots * self._steps, *rows.shape[1:])
        padded[self._places] = rows
        return padded.unflatten(0, (self._slots, self._steps))

    def to_rows(self, by_slot: torch.Tensor) -> torch.Tensor:
        """[slots, steps, ...] -> [rows, ...]."""
        flat = by_slot.flatten(0, 1)
        return flat if self._is_even else flat[self._places]

    def row_mask(self, like: torch.Tensor) -> torch.Tensor | float:
        """[slots, steps, 1]: 1 for rows, 0 for padding, which the convolution would fill from the rows before it."""
        return 1.0 if self._is_even else self.to_slots(like.new_ones(len(self._places), 1))
