"""Reads of a tiny model in memory: what is told of them, and that other logits show no speed."""

import dataclasses

import pytest
import torch

from strata.bench.read import ReadBench, ReadPlan
from strata.bench.read_profile import profile_chunk
from strata.bench.synthetic_model import expert_layers_of, make_model, synthetic_config
from strata.bench.tier_memory import TierMemory
from strata.errors import EngineError
from strata.models.device.reading.chunks import ChunkMemory
from strata.models.device.synthetic import SyntheticForm

CPU = torch.device("cpu")
PLAN = ReadPlan(caches=(0, 50), chunks=(64,), tokens=(70,), rounds=1, steps=("tile",))


def bench() -> ReadBench:
    config, form = synthetic_config(1, is_tiny=True), SyntheticForm()
    memory = TierMemory.take(*expert_layers_of(config, form), CPU, threads=1)
    return ReadBench(make_model(config, form, CPU, take_experts=memory.put), memory, PLAN)


def test_speeds_are_told_of_every_cache_and_only_of_equal_logits() -> None:
    made = bench()
    assert made.copy_bytes_per_second() is None
    none, half = made.measure()
    assert (none.cache, half.cache, none.tokens, none.chunk) == (0, 50, 70, 64)
    assert none.sent_bytes > half.sent_bytes > 0
    assert (
        none.seconds.median > 0 and none.layer_ms > 0 and none.longest_ms >= none.slow_ms > 0 and none.chunk_bytes > 0
    )
    assert none.tokens_per_second == pytest.approx(70 / none.seconds.median)
    assert dataclasses.replace(none, copy_ms=500 * none.seconds.median).copy_share == pytest.approx(0.5)
    made._logits[70] = made._logits[70] + 1
    with pytest.raises(EngineError, match="differ from those of another cache"):
        made.measure()


def test_a_profile_names_every_part_of_a_layer_once() -> None:
    made = bench()
    with made.reader(100, 64) as (model, _):
        assert isinstance(model.chunks, ChunkMemory)
        parts = profile_chunk(model.chunks, torch.zeros(64, dtype=torch.int64))
    names = [(part.kind, part.step) for part in parts]
    assert len(set(names)) == len(names)
    assert {"embed", "experts: gate, up", "experts: combine"} <= {part.step for part in parts}
    assert all(part.ms >= 0 and part.layers == 1 for part in parts)
