"""The experts' candidates can be launched, each kernel is compiled once, and windows read past the cache."""

import pytest

pytest.importorskip("triton")
from strata.kernels.measured import MEASURED
from tests.gpu.tune_experts import CACHE_BYTES, CONFIRMED, LINES, Line, kernels
from tests.gpu.weights import blob_layout

HIDDEN_TILES = 4  # of a program of gate, up and hidden


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_candidates_fit_into_a_multiprocessor(line: Line) -> None:
    for launch in line.gates:
        assert launch.tiles == 1
        assert (launch.registers or 255) * 32 * launch.warps * HIDDEN_TILES <= 65536
    for launch in line.downs:
        assert (launch.registers or 255) * 32 * launch.warps * launch.tiles <= 65536


@pytest.mark.parametrize("device", list(MEASURED))
def test_every_kernel_is_compiled_once_the_tables_among_them(device: str) -> None:
    jobs = kernels(device)
    keys = [(pair, line.rows if pair[1] else 0) for line, pair in jobs]
    assert len(set(keys)) == len(keys) <= 28
    for line in LINES:
        gate, down = line.tables(device)
        assert {((gate, None), 0), ((None, down), line.rows)} <= set(keys)


@pytest.mark.parametrize("line", LINES + CONFIRMED, ids=lambda line: line.name)
def test_windows_read_past_the_cache(line: Line) -> None:
    read = line.windows * 10 * blob_layout(line.kind, line.kind).down.total_bytes
    assert (line.rows > 1 and not line.is_shared) or read > CACHE_BYTES
    assert line.choices(512).shape == (line.rows, 10)
    assert (len(line.choices(512).unique()) == 10) is (line.is_shared or line.rows == 1)
