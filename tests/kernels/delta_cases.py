"""Random delta nets, their states and rows, for tests of kernels and for tests/gpu. Knows no expected value."""

from dataclasses import dataclass

import torch

from strata.kernels.delta_rows import DeltaRowsShape, DeltaStates, DeltaVectors, SegmentLengths

TINY = DeltaRowsShape(key_heads=2, value_heads=4, key_dim=16, value_dim=16, conv_kernel=4)
WIDER = DeltaRowsShape(key_heads=1, value_heads=2, key_dim=8, value_dim=32, conv_kernel=3, gate_is_sigmoid=True)
PUBLISHED = DeltaRowsShape(
    key_heads=16, value_heads=48, key_dim=128, value_dim=128, conv_kernel=4, gate_is_sigmoid=True
)

ANY = SegmentLengths(longest=32)  # nothing is known of the rows


@dataclass(frozen=True)
class DeltaCase:
    """All layers of a model in one size."""

    shape: DeltaRowsShape
    states: DeltaStates
    vectors: DeltaVectors
    projected: torch.Tensor  # [layers, rows, projected_width]


def random_case(
    shape: DeltaRowsShape, layers: int, slots: int, rows: int, device: torch.device | str = "cpu", seed: int = 0
) -> DeltaCase:
    """States and rows as large as those of a model; decays from almost 1 to almost 0."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device)

    heads = shape.value_heads
    states = DeltaStates(
        normal(layers, slots, heads, shape.key_dim, shape.value_dim) * 0.3,
        normal(layers, slots, shape.tail_rows, shape.conv_width),
    )
    vectors = DeltaVectors(
        normal(layers, shape.conv_kernel, shape.conv_width) * 0.5,
        -torch.exp(normal(layers, heads) * 2.0),
        normal(layers, heads) * 2.0,
        1.0 + 0.1 * normal(layers, shape.value_dim),
    )
    return DeltaCase(shape, states, vectors, normal(layers, rows, shape.projected_width))


def copy_of(states: DeltaStates) -> DeltaStates:
    """The same values in memory of their own."""
    return DeltaStates(states.delta.clone(), states.conv_tail.clone())
