"""The kernel bench counts bytes as they lie and shows numbers only of right results; its command prints and writes."""

import json

import pytest
import torch

from strata.bench import kernels
from strata.bench.kernels import KernelPlan, bench_layout, check_bits, filled_arena, measure_kernels
from strata.errors import EngineError
from strata.experts.pool import ExpertPool
from strata.native import library
from strata.native.pool import Pool
from strata.quant.layout import Code

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

SMALL = KernelPlan(threads=(1, 2), hidden=128, width=64, mib=1, rounds=2)


def test_every_code_and_thread_count_is_measured() -> None:
    report = measure_kernels(SMALL)
    assert [(speed.code, speed.threads) for speed in report.speeds] == [
        (code, threads) for code in SMALL.codes for threads in (1, 2)
    ]
    for speed in report.speeds:
        assert 0 < speed.experts.lowest <= speed.experts.median <= speed.experts.highest
        assert speed.blob_bytes == bench_layout(Code(speed.code), 128, 64).total_bytes
    assert json.loads(report.as_json())["plan"]["rounds"] == 2


def test_no_number_is_shown_for_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = ExpertPool.compute

    def sometimes_wrong(self: ExpertPool, experts: object, x: torch.Tensor, out: torch.Tensor) -> None:
        compute(self, experts, x, out)  # type: ignore[arg-type]
        if kernels.isa.current() != "scalar":
            out[0, 0, 0] += 1e-3

    monkeypatch.setattr(ExpertPool, "compute", sometimes_wrong)
    layout = bench_layout(Code.CODE4, 128, 64)
    if kernels.isa.current() == "scalar":
        pytest.skip("this processor has no other path")
    with Pool(1) as pool, pytest.raises(EngineError, match="no speed is shown"):
        check_bits(pool, layout, filled_arena(layout, 1 << 20), 1)
