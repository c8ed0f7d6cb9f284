"""A window by Triton in the interpreter with experts in every tier: the bits of one with all on the device."""

import pytest
import torch

from strata.engine.flights import in_flight
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.models.device.description import DeviceModel
from strata.native import library
from strata.native.pool import Pool
from tests.engine.test_triton_stage import road
from tests.engine.tiered_stages import Tiering, built, tiered
from tests.kernels.interpreter import needs_interpreter

pytestmark = [
    needs_interpreter,
    pytest.mark.skipif(not library.is_available(), reason="the native library was not built"),
]
BUCKET = 3


def logits_of(model: DeviceModel) -> torch.Tensor:
    """Of two rows of one slot and one of another."""
    stage = Stage(model, StageSizes(2, 64), (BUCKET,))
    with in_flight(stage):
        stage.set_rows(BUCKET, [RowsPart(1, 0, [5, 7]), RowsPart(0, 0, [9])])
        stage.run(Variant.FORWARD, BUCKET)
    return stage.logits(BUCKET).clone()


@pytest.mark.parametrize(("choice", "waits_in_stream"), [("code8", False), ("code8", True), ("none", False)])
def test_triton_gives_the_same_bits_in_every_tier(
    choice: str, waits_in_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with road(monkeypatch, is_reference=False), Pool(2) as pool:
        wanted = logits_of(built("qwen3_moe", choice)[1])
        tiering = Tiering(0.25, 0.3, waits_in_stream=waits_in_stream)
        with tiered("qwen3_moe", choice, tiering, pool) as (_, model):
            found = logits_of(model)
            assert model.tiers is not None
            counts = model.tiers.counts()
    assert min(counts.seats, counts.in_place, counts.on_cpu) > 0
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
