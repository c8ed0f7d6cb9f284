"""What the rows of a gated delta net are computed from, and their checks. Knows sizes; knows no arithmetic.

A projected row is `in_proj_qkv | in_proj_z | in_proj_b | in_proj_a`; value head h uses key head
h // (value_heads // key_heads). Tensors are float32 and contiguous.
"""

from dataclasses import dataclass

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS


@dataclass(frozen=True)
class DeltaRowsShape:
    """Sizes of every delta-net layer of a model."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    eps: float = 1e-6  # of the norm behind the rule
    gate_is_sigmoid: bool = False  # of z; otherwise silu

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Columns that are convolved: queries, keys, values."""
        return 2 * self.key_width + self.value_width

    @property
    def projected_width(self) -> int:
        return self.conv_width + self.value_width + 2 * self.value_heads

    @property
    def inputs_width(self) -> int:
        """Columns of what the rule reads of a row: queries, keys, values, and each value head's beta and decay."""
        return self.conv_width + 2 * self.value_heads

    @property
    def tail_rows(self) -> int:
        """Rows that a convolution reaches back."""
        return self.conv_kernel - 1


@dataclass(frozen=True)
class SegmentLengths:
    """What is known of every segment's rows while its length lies on the device, so that launches can be left out."""

    longest: int  # no segment has more rows
    certain: int = 0  # a segment of at most so many rows becomes state as a whole, whatever comes out of the window

    @property
    def leave_choice(self) -> bool:
        """Whether a segment may become state in part."""
        return self.longest > self.certain


@dataclass(frozen=True)
class DeltaState:
    """All slots' state of one layer."""

    delta: torch.Tensor  # [slots, value_heads, key_dim, value_dim]
    conv_tail: torch.Tensor  # [slots, tail_rows, conv_width]: the last rows before the convolution


@dataclass(frozen=True)
class DeltaStates:
    """All slots' state of all layers."""

    delta: torch.Tensor  # [layers, slots, value_heads, key_dim, value_dim]
    conv_tail: torch.Tensor  # [layers, slots, tail_rows, conv_width]

    def layer(self, index: int) -> DeltaState:
        """Views of one layer's."""
        return DeltaState(self.delta[index], self.conv_tail[index])


@dataclass(frozen=True)
class DeltaRowsWork:
    """What the launches of one layer leave for each other; layers after one another share it."""

    inputs: torch.Tensor  # [rows, inputs_width]: what the rule reads
    recalled: torch.Tensor  # [rows, value_width]: what it gives, before the norm

    @classmethod
    def empty(cls, rows: int, shape: DeltaRowsShape, device: torch.device | str) -> "DeltaRowsWork":
        """Room for a bucket of `rows` rows."""
        return cls(*(torch.empty(rows, width, device=device) for width in (shape.inputs_width, shape.value_width)))


@dataclass(frozen=True)
class DeltaVectors:
    """What the rule takes from the weights of one layer; with an axis of layers in front, of all of them."""

    conv: torch.Tensor  # [conv_kernel, conv_width]: the last tap meets the row itself
    decay_rate: torch.Tensor  # [value_heads]: -exp(A_log)
    decay_bias: torch.Tensor  # [value_heads]
    norm_scale: torch.Tensor  # [value_dim]

    def layer(self, index: int) -> "DeltaVectors":
        """Views of one layer's."""
        return DeltaVectors(self.conv[index], self.decay_rate[index], self.decay_bias[index], self.norm_scale[index])


def check_rows(
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaRowsWork,
    out: RowsOut,
    block_order: torch.Tensor | None,
) -> None:
    """Raises ValueError for what `delta_rows` cannot take."""
    check_shape(shape)
    _check_lengths(lengths)
    slots = state.delta.shape[0]
    check_tensor("projected", projected, (rows.count, shape.projected_width))
    check_tensor("state.delta", state.delta, (slots, shape.value_heads, shape.key_dim, shape.value_dim))
    check_tensor("state.conv_tail", state.conv_tail, (slots, shape.tail_rows, shape.conv_width))
    check_vectors(vectors, shape, ())
    check_tensor("work.inputs", work.inputs, (rows.count, shape.inputs_width))
    check_tensor("work.recalled", work.recalled, (rows.count, shape.value_width))
    if out.plain is not None:
        check_tensor("out.plain", out.plain, (rows.count, shape.value_width))
    is_cut = shape.value_dim % BLOCK_COLUMNS != 0
    if out.plain is None and (out.quantized is None or is_cut):
        raise ValueError(
            f"out.plain is missing: value heads of {shape.value_dim} columns are quantized by themselves only where "
            f"{BLOCK_COLUMNS} divides them and out.quantized is given"
        )
    if block_order is not None:
        if is_cut:
            raise ValueError(f"block_order moves whole heads of a multiple of {BLOCK_COLUMNS}, not {shape.value_dim}")
        check_tensor("block_order", block_order, (shape.value_width // BLOCK_COLUMNS,), torch.int32)


def check_commit(
    states: DeltaStates,
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    accepted: torch.Tensor,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
) -> None:
    """Raises ValueError for what `commit_delta` cannot take."""
    check_shape(shape)
    _check_lengths(lengths)
    layers, slots = states.delta.shape[:2]
    check_tensor("states.delta", states.delta, (layers, slots, shape.value_heads, shape.key_dim, shape.value_dim))
    check_tensor("states.conv_tail", states.conv_tail, (layers, slots, shape.tail_rows, shape.conv_width))
    check_tensor("projected", projected, (layers, rows.count, shape.projected_width))
    check_tensor("accepted", accepted, (rows.segments,), torch.int32)
    check_vectors(vectors, shape, (layers,))


def check_vectors(vectors: DeltaVectors, shape: DeltaRowsShape, leading: tuple[int, ...]) -> None:
    """Raises ValueError unless these are the vectors of `leading` (no, or a number of) layers of this shape."""
    check_tensor("vectors.conv", vectors.conv, (*leading, shape.conv_kernel, shape.conv_width))
    check_tensor("vectors.decay_rate", vectors.decay_rate, (*leading, shape.value_heads))
    check_tensor("vectors.decay_bias", vectors.decay_bias, (*leading, shape.value_heads))
    check_tensor("vectors.norm_scale", vectors.norm_scale, (*leading, shape.value_dim))


def _check_lengths(lengths: SegmentLengths) -> None:
    if lengths.longest < 1 or lengths.certain < 0:
        raise ValueError(f"lengths.longest must be at least 1 and lengths.certain at least 0, not {lengths}")


def check_shape(shape: DeltaRowsShape) -> None:
    """Raises ValueError for sizes that no kernel of this package takes."""
    if shape.value_heads % shape.key_heads:
        raise ValueError(f"value_heads {shape.value_heads} must be a multiple of key_heads {shape.key_heads}")
    for name, size in (("key_dim", shape.key_dim), ("value_dim", shape.value_dim)):
        if size & (size - 1) or not 8 <= size <= 256:
            raise ValueError(f"{name} must be a power of two from 8 to 256, not {size}")
    if shape.conv_kernel < 2:
        raise ValueError(f"conv_kernel must be at least 2, not {shape.conv_kernel}")
