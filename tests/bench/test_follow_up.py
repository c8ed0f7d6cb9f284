"""Follow-ups of a tiny model in memory: what is told of them, and that other logits show no speed."""

import dataclasses

import pytest
import torch

from strata.bench.follow_up import READING_SECONDS, RESIDENT_SECONDS, SENDING_PART, FollowUpBench
from strata.bench.read import ReadBench, ReadPlan
from strata.bench.synthetic_model import expert_layers_of, make_model, synthetic_config
from strata.bench.tier_memory import TierMemory
from strata.errors import EngineError
from strata.models.device.synthetic import SyntheticForm

CPU = torch.device("cpu")


def test_turns_are_told_of_every_cache_and_only_of_equal_logits() -> None:
    config, form = synthetic_config(1, is_tiny=True), SyntheticForm()
    memory = TierMemory.take(*expert_layers_of(config, form), CPU, threads=1)
    plan = ReadPlan(caches=(0, 100), chunks=(64,), tokens=(90,), rounds=1)
    made = ReadBench(make_model(config, form, CPU, take_experts=memory.put), memory, plan)
    bench = FollowUpBench(made, fresh=(3, 20), held=70)
    short, long, *resident = bench.measure()
    assert [(each.cache, each.fresh, each.held) for each in (short, *resident)] == [
        (0, 3, 70),
        (100, 3, 70),
        (100, 20, 70),
    ]
    assert 0 < short.sent_bytes <= long.sent_bytes and short.seconds.median > 0
    assert short.wanted_seconds is None and short.share is None, "there is no link here"
    assert [each.sent_bytes for each in resident] == [0, 0]
    assert resident[0].share == pytest.approx(resident[0].seconds.median / RESIDENT_SECONDS)
    wanted = dataclasses.replace(short, link_seconds=2.0).wanted_seconds
    assert wanted == pytest.approx(2 * SENDING_PART + READING_SECONDS)
    bench._logits[20] = bench._logits[20] + 1
    with pytest.raises(EngineError, match="20 fresh tokens differ"):
        bench.measure()
