"""The steps between a prompt's products: against the windows' definitions, row by row, and what is refused."""

import pytest
import torch

from strata.kernels.expert_rows.reference import silu_times
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.read_streams import add_norm, gate_shares, gated_hidden, low_gates, mix_streams
from strata.kernels.residual_streams import MixerRows, add_and_norm
from tests.kernels.random_matrices import random_rows
from tests.kernels.stream_cases import StreamSizes, additions, norm_scale

FOUR = StreamSizes(rows=5, streams=4, hidden=96)
ONE = StreamSizes(rows=3, streams=1, hidden=64)
KINDS = ("nothing", "mixer", "values")
ROUNDED = {"rtol": 2**-8, "atol": 1e-30}


@pytest.mark.parametrize("sizes", [FOUR, ONE])
@pytest.mark.parametrize("kind", KINDS)
def test_streams_get_the_sums_of_windows_and_norms_rounded_once(kind: str, sizes: StreamSizes) -> None:
    addition, streams, scale = additions(5, sizes)[kind], random_rows(6, sizes.rows, sizes.width), norm_scale(7, 1)
    scale = scale.expand(sizes.width).contiguous()
    wanted, plain = streams.clone(), torch.empty_like(streams)
    add_and_norm(wanted, addition, scale, 1e-6, sizes.streams, RowsOut(plain, None))
    for dtype in (torch.bfloat16, torch.float32):
        found, out = streams.clone(), torch.empty_like(streams, dtype=dtype)
        add_norm(found, addition, scale, 1e-6, sizes.streams, out)  # type: ignore[arg-type]
        assert torch.equal(found, wanted)
        torch.testing.assert_close(out.float(), plain, rtol=2**-8 if dtype is torch.bfloat16 else 2e-6, atol=1e-30)


def test_gates_mix_streams_as_they_do_in_windows() -> None:
    shares, normed = random_rows(1, 5, 32 + 4), random_rows(2, 5, FOUR.width).bfloat16()
    low, strengths = torch.empty(5, 32, dtype=torch.bfloat16), torch.empty(5, 4)
    low_gates(shares, 4, low, strengths)
    quarter = shares / 4
    torch.testing.assert_close(low.float(), silu_times(quarter[:, :32], torch.ones(5, 32)), **ROUNDED)
    torch.testing.assert_close(strengths, 2 * torch.sigmoid(quarter[:, 32:]))
    gates, mixed = random_rows(3, 5, FOUR.width).bfloat16(), torch.empty(5, FOUR.hidden, dtype=torch.bfloat16)
    mix_streams(gates, normed, 4, mixed)
    wanted = (torch.sigmoid(gates.float()) * normed.float()).view(5, 4, FOUR.hidden).mean(dim=1)
    torch.testing.assert_close(mixed.float(), wanted, rtol=2**-8, atol=1e-6)
    only = torch.empty(5, 36, dtype=torch.bfloat16)
    low_gates(shares, 4, only, None)
    assert torch.equal(only[:, :32], low)


def test_hidden_rows_and_the_shared_gate() -> None:
    wide, hidden = random_rows(4, 3, 200), torch.empty(3, 64, dtype=torch.bfloat16)
    gated_hidden(wide[:, 40:168], hidden)  # in a wider matrix
    torch.testing.assert_close(hidden.float(), silu_times(wide[:, 40:104], wide[:, 104:168]), **ROUNDED)
    x, gate, shares = random_rows(5, 3, 64).bfloat16(), random_rows(6, 1, 64)[0], torch.empty(3)
    gate_shares(x, gate, shares)
    torch.testing.assert_close(shares, torch.sigmoid(x.float() @ gate))


def test_other_shapes_are_refused() -> None:
    streams, out = torch.zeros(2, 128), torch.zeros(2, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="streams_count 3 must divide the 128 columns"):
        add_norm(streams, additions(0, ONE)["nothing"], torch.ones(128), 1e-6, 3, out)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="strengths are missing: 2 streams"):
        add_norm(streams, MixerRows(torch.zeros(2, 64), None), torch.ones(128), 1e-6, 2, out)
    with pytest.raises(ValueError, match=r"low must be contiguous torch.bfloat16 \[2, 124\]"):
        low_gates(streams, 4, out, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"mixed must be contiguous torch.bfloat16 \[2, 32\]"):
        mix_streams(out, out, 4, out)
    with pytest.raises(ValueError, match=r"gate_up must be float32 \[2, 256\]"):
        gated_hidden(streams, out)
    with pytest.raises(ValueError, match=r"gate must be contiguous torch.float32 \[128\]"):
        gate_shares(out, torch.ones(64), torch.zeros(2))
