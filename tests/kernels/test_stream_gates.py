"""Gates over residual streams in torch: against the models' own function, and what is refused."""

import pytest
import torch

from strata.kernels.expert_rows.reference import matrix_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates import GatesOut, stream_gates
from strata.kernels.stream_gates.reference import add_streams
from strata.models.blocks.norm import grouped_rms_norm
from strata.models.blocks.residual_streams import ResidualWeights, read_streams
from strata.quant.packed import PackedMatrix
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


def plain_room(rows: int, low_rank: int, hidden: int, streams: int) -> GatesOut:
    strengths = torch.full((rows, streams), float("nan"))
    return GatesOut(room(rows, low_rank, CPU), room(rows, hidden, CPU), strengths)


@pytest.mark.parametrize(("kind", "low_rank"), [("q4_0", 64), ("q8_0", 320), ("bf16", 16)])
def test_gates_are_those_of_the_models(kind: str, low_rank: int) -> None:
    streams, hidden, rows = 4, 64, 3
    up = random_matrix(1, KIND[kind].layout(streams * hidden, low_rank), post_scale=0.5)
    down = random_matrix(2, KIND["f32"].layout(low_rank + streams, streams * hidden), post_scale=0.05)
    weights = ResidualWeights(norm_scale(3, streams * hidden), Packed(down), Packed(up), streams, 1e-6)
    x = torch.randn(rows, streams * hidden, generator=torch.Generator().manual_seed(4))
    wanted, strengths = read_streams(x, weights)
    normed = grouped_rms_norm(x, weights.norm_scale, streams, 1e-6)
    out = plain_room(rows, low_rank, hidden, streams)
    stream_gates(matrix_rows(down, normed), normed, up, streams, out)
    assert out.mixed.plain is not None and out.strengths is not None
    # A low value on the edge of two integers may fall on either side: the exp differs in its last bits.
    torch.testing.assert_close(out.mixed.plain, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.strengths, strengths, rtol=1e-6, atol=1e-7)


def test_the_last_gate_of_a_model_has_no_strengths() -> None:
    up, normed, shares = random_matrix(1, KIND["q8_0"].layout(128, 32)), random_rows(2, 2, 128), random_rows(3, 2, 36)
    out = plain_room(2, 32, 32, 4)
    stream_gates(shares, normed, up, 4, out)
    last = GatesOut(out.low, room(2, 32, CPU), None)
    stream_gates(shares[:, :32].contiguous(), normed, up, 4, last)
    assert last.mixed.plain is not None and out.mixed.plain is not None
    assert torch.equal(last.mixed.plain, out.mixed.plain)


def test_streams_are_added_by_the_tree() -> None:
    values = random_rows(9, 4 * 5, 7).reshape(5, 4, 7)
    assert torch.equal(add_streams(values), (values[:, 0] + values[:, 2]) + (values[:, 1] + values[:, 3]))
    assert torch.equal(add_streams(values[:, :3]), (values[:, 0] + values[:, 2]) + values[:, 1])
    assert torch.equal(add_streams(values[:, :1]), values[:, 0])


def test_other_shapes_are_refused() -> None:
    up, normed, shares = random_matrix(1, KIND["q8_0"].layout(128, 32)), torch.zeros(2, 128), torch.zeros(2, 36)
    out = plain_room(2, 32, 32, 4)
    with pytest.raises(ValueError, match="128 columns in 8 streams: a stream must be whole blocks"):
        stream_gates(shares, normed, up, 8, out)
    with pytest.raises(ValueError, match="up has 128 rows; it must have as many as normed has columns, 256"):
        stream_gates(shares, torch.zeros(2, 256), up, 4, out)
    with pytest.raises(ValueError, match=r"shares must be .* \[2, 36\], not .* \[2, 32\]"):
        stream_gates(torch.zeros(2, 32), normed, up, 4, out)
    with pytest.raises(ValueError, match="low has neither plain nor quantized"):
        stream_gates(shares, normed, up, 4, GatesOut(RowsOut(None, None), out.mixed, out.strengths))
    with pytest.raises(ValueError, match="mixed: the torch road writes plain rows alone"):
        stream_gates(shares, normed, up, 4, GatesOut(out.low, room(2, 32, CPU, quantized=True), out.strengths))
