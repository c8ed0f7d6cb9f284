"""Adding to residual streams and their norms in torch: against the models' own functions, and what is refused."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.expert_rows.reference import combine
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.residual_streams import Addition, ExpertRows, MixerRows, Nothing, Values, add_and_norm
from strata.models.blocks.norm import grouped_rms_norm
from strata.models.blocks.residual_streams import write_streams
from tests.kernels.random_matrices import random_rows
from tests.kernels.stream_cases import StreamSizes, additions, first_rows, norm_scale, room

CPU = torch.device("cpu")
FOUR = StreamSizes(rows=3, streams=4, hidden=64, ranks=4)
ONE = StreamSizes(rows=2, streams=1, hidden=96, ranks=3)
KINDS = tuple(additions(0, FOUR))


def written(streams: torch.Tensor, addition: Addition) -> torch.Tensor:
    """The same, by the functions that models are made of."""
    if isinstance(addition, Nothing):
        return streams
    if isinstance(addition, Values):
        return streams + addition.values
    if isinstance(addition, MixerRows):
        output = addition.output
    else:
        everything = torch.ones_like(addition.weights, dtype=torch.bool)
        output = combine(addition.by_rank, addition.weights, everything, addition.shared, addition.shared_weights)
    return streams + output if addition.strengths is None else write_streams(streams, output, addition.strengths)


@pytest.mark.parametrize("sizes", [FOUR, ONE])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_have_the_bits_of_the_models_and_norms_agree(kind: str, sizes: StreamSizes) -> None:
    addition, streams = additions(5, sizes)[kind], random_rows(6, sizes.rows, sizes.width)
    scale, out = norm_scale(7, sizes.width), room(sizes.rows, sizes.width, CPU)
    wanted = written(streams, addition)
    add_and_norm(streams, addition, scale, 1e-6, sizes.streams, out)
    assert torch.equal(streams.view(torch.int32), wanted.view(torch.int32))
    assert out.plain is not None
    torch.testing.assert_close(out.plain, grouped_rms_norm(wanted, scale, sizes.streams, 1e-6), rtol=2e-6, atol=1e-30)


def test_a_row_does_not_know_its_neighbours() -> None:
    sizes = replace(FOUR, rows=5)
    streams, addition = random_rows(1, 5, sizes.width), additions(2, sizes)["experts and gated"]
    scale, together, alone = norm_scale(3, sizes.width), room(5, sizes.width, CPU), room(1, sizes.width, CPU)
    third = streams[3:4].clone()
    add_and_norm(streams, addition, scale, 1e-6, 4, together)
    add_and_norm(third, first_rows(addition, 3, 4), scale, 1e-6, 4, alone)
    assert torch.equal(third, streams[3:4])
    assert together.plain is not None and alone.plain is not None and torch.equal(alone.plain, together.plain[3:4])


def test_other_shapes_are_refused() -> None:
    streams, scale, out = torch.zeros(2, 128), torch.ones(128), room(2, 128, CPU)
    with pytest.raises(ValueError, match="streams_count 3 must divide the 128 columns"):
        add_and_norm(streams, Nothing(), scale, 1e-6, 3, out)
    with pytest.raises(ValueError, match=r"norm_scale must be .* \[128\], not .* \[64\]"):
        add_and_norm(streams, Nothing(), torch.ones(64), 1e-6, 2, out)
    with pytest.raises(ValueError, match="strengths are missing: 2 streams"):
        add_and_norm(streams, MixerRows(torch.zeros(2, 64), None), scale, 1e-6, 2, out)
    with pytest.raises(ValueError, match=r"output must be .* \[2, 64\]"):
        add_and_norm(streams, MixerRows(torch.zeros(2, 128), torch.ones(2, 2)), scale, 1e-6, 2, out)
    with pytest.raises(ValueError, match=r"values must be .* \[2, 128\]"):
        add_and_norm(streams, Values(torch.zeros(2, 64)), scale, 1e-6, 2, out)
    experts = ExpertRows(torch.zeros(2, 3, 64), torch.zeros(2, 3), None, torch.ones(2), torch.ones(2, 2))
    with pytest.raises(ValueError, match="without the rows `shared`"):
        add_and_norm(streams, experts, scale, 1e-6, 2, out)
    with pytest.raises(ValueError, match="by_rank must be"):
        add_and_norm(streams, replace(experts, weights=torch.zeros(2, 4)), scale, 1e-6, 2, out)
    with pytest.raises(ValueError, match="neither plain nor quantized"):
        add_and_norm(streams, Nothing(), scale, 1e-6, 2, RowsOut(None, None))
    with pytest.raises(ValueError, match="a stream of 16 columns is no whole blocks"):
        add_and_norm(streams, Nothing(), scale, 1e-6, 8, room(2, 128, CPU, quantized=True))
    with pytest.raises(ValueError, match="the torch road writes plain rows alone"):
        add_and_norm(streams, Nothing(), scale, 1e-6, 2, room(2, 128, CPU, quantized=True))
