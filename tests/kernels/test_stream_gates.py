"""Gates over residual streams in torch: against the models' own function, and what is refused."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.expert_rows.reference import matrix_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates import gates_down, stream_gates
from strata.kernels.stream_gates.reference import add_streams
from strata.models.blocks.norm import grouped_rms_norm
from strata.models.blocks.residual_streams import ResidualWeights, read_streams
from strata.quant.packed import PackedMatrix
from tests.kernels.gate_cases import room_for_low
from tests.kernels.random_matrices import KINDS, random_matrix, random_rows
from tests.kernels.stream_cases import norm_scale, room

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}


class Packed:
    """A packed matrix as models hold it, multiplied by the definition."""

    def __init__(self, matrix: PackedMatrix):
        self.matrix, self.dtype = matrix, torch.float32
        self.shape = (matrix.layout.rows, matrix.layout.columns)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return matrix_rows(self.matrix, x)


@pytest.mark.parametrize(("kind", "low_rank"), [("q4_0", 64), ("q8_0", 320), ("bf16", 16)])
def test_gates_are_those_of_the_models(kind: str, low_rank: int) -> None:
    streams, hidden, rows = 4, 64, 3
    up = random_matrix(1, KIND[kind].layout(streams * hidden, low_rank), post_scale=0.5)
    down = random_matrix(2, KIND["f32"].layout(low_rank + streams, streams * hidden), post_scale=0.05)
    weights = ResidualWeights(norm_scale(3, streams * hidden), Packed(down), Packed(up), streams, 1e-6)
    x = torch.randn(rows, streams * hidden, generator=torch.Generator().manual_seed(4))
    wanted, strengths = read_streams(x, weights)
    normed = grouped_rms_norm(x, weights.norm_scale, streams, 1e-6)
    out, mixed = room_for_low(rows, low_rank, streams, CPU, plain=True), room(rows, hidden, CPU)
    gates_down([down], RowsOut(normed, None), streams, out)
    stream_gates(out.low, normed, up, streams, mixed)
    assert mixed.plain is not None and out.strengths is not None
    # A low value on the edge of two integers may fall on either side: the exp differs in its last bits.
    torch.testing.assert_close(mixed.plain, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.strengths, strengths, rtol=1e-6, atol=1e-7)


def test_the_last_gate_of_a_model_has_no_strengths() -> None:
    down, normed = random_matrix(1, KIND["q8_0"].layout(36, 128)), RowsOut(random_rows(2, 2, 128), None)
    out, last = (room_for_low(2, 32, 4, CPU, plain=True, has_strengths=has) for has in (True, False))
    gates_down([down], normed, 4, out)
    gates_down([random_matrix(1, KIND["q8_0"].layout(32, 128))], normed, 4, last)
    assert last.low.plain is not None and out.low.plain is not None
    assert last.shares.shape == (2, 32) and not bool(last.low.plain.isnan().any())
    assert out.strengths is not None and not bool(out.strengths.isnan().any())


def test_down_may_be_of_several_parts() -> None:
    parts = [
        random_matrix(seed, KIND[kind].layout(rows, 64)) for seed, (kind, rows) in enumerate((("q8_0", 32), ("f32", 4)))
    ]
    normed, out = RowsOut(random_rows(2, 3, 64), None), room_for_low(3, 32, 4, CPU, plain=True)
    gates_down(parts, normed, 4, out)
    assert normed.plain is not None
    assert torch.equal(out.shares, torch.cat([matrix_rows(part, normed.plain) for part in parts], dim=1))


def test_streams_are_added_by_the_tree() -> None:
    values = random_rows(9, 4 * 5, 7).reshape(5, 4, 7)
    assert torch.equal(add_streams(values), (values[:, 0] + values[:, 2]) + (values[:, 1] + values[:, 3]))
    assert torch.equal(add_streams(values[:, :3]), (values[:, 0] + values[:, 2]) + values[:, 1])
    assert torch.equal(add_streams(values[:, :1]), values[:, 0])


def test_other_shapes_are_refused_by_gates() -> None:
    up, normed, low, mixed = (
        random_matrix(1, KIND["q8_0"].layout(128, 32)),
        torch.zeros(2, 128),
        room(2, 32, CPU),
        room(2, 32, CPU),
    )
    with pytest.raises(ValueError, match="128 columns in 8 streams: a stream must be whole blocks"):
        stream_gates(low, normed, up, 8, mixed)
    with pytest.raises(ValueError, match="up has 128 rows; it must have as many as normed has columns, 256"):
        stream_gates(low, torch.zeros(2, 256), up, 4, mixed)
    with pytest.raises(ValueError, match=r"rows must be float32 \[2, 32\], not .* \[2, 64\]"):
        stream_gates(room(2, 64, CPU), normed, up, 4, mixed)
    with pytest.raises(ValueError, match="mixed has neither plain nor quantized"):
        stream_gates(low, normed, up, 4, RowsOut(None, None))
    with pytest.raises(ValueError, match="mixed: the torch road writes plain rows alone"):
        stream_gates(low, normed, up, 4, room(2, 32, CPU, quantized=True))


def test_other_shapes_are_refused_by_down() -> None:
    down, normed, out = (
        random_matrix(1, KIND["q8_0"].layout(36, 128)),
        room(2, 128, CPU),
        room_for_low(2, 32, 4, CPU, True),
    )
    with pytest.raises(ValueError, match="down has 72 rows; there is room for 36 shares"):
        gates_down([down, down], normed, 4, out)
    with pytest.raises(ValueError, match=r"rows must be float32 \[2, 128\], not .* \[3, 128\]"):
        gates_down([down], room(3, 128, CPU), 4, out)
    with pytest.raises(ValueError, match=r"strengths must be .* \[2, 2\], not .* \[2, 4\]"):
        gates_down([down], normed, 2, replace(out, low=room(2, 34, CPU)))
    with pytest.raises(ValueError, match="low has neither plain nor quantized"):
        gates_down([down], normed, 4, replace(out, low=RowsOut(None, None)))
    with pytest.raises(ValueError, match=r"arrivals must be contiguous torch.int32 \[2, 2\]"):
        gates_down([down], normed, 4, replace(out, arrivals=torch.zeros(2, 1, dtype=torch.int32)))
    halves = [random_matrix(1, KIND["q8_0"].layout(18, 128))] * 2
    with pytest.raises(ValueError, match=r"down's parts of \[18, 18\] rows cut blocks of 32"):
        gates_down(halves, normed, 4, replace(out, low=room(2, 32, CPU, quantized=True)))
