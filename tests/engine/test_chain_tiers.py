"""Experts in tiers on every stage of a chain: each has its own seats and mailboxes, all share the threads."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from strata.engine.chain import StageChain
from strata.engine.flights import in_flight
from strata.engine.stage import RowsPart, Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_programs import Variant
from strata.errors import EngineError
from strata.experts.packing import PackingThreads
from strata.experts.store import ExpertStore
from strata.experts.store_filling import fill_layer
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.experts.tiers import ExpertTiers, WindowSize
from strata.experts.uploading import Staging
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.layer_split import LayerSplit
from strata.models.fast.packing import experts_of
from strata.native import library
from strata.native.pool import Pool
from tests.engine.served import Served, ask
from tests.engine.stages import CPU, stage_engine
from tests.engine.tiered_stages import Tiering, built, seats_spread, share_table
from tests.gpu.tiny_models import tiny_model
from tests.random_text import token_ids_of

FAMILY, CHOICE, CUTS = "qwen3_5_moe", "code8", (1, 3)
SIZES = StageSizes(2, 128)
TIERING = Tiering(0.4, in_place=0.5)
pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def tiers_of(run: range, pool: Pool) -> ExpertTiers:
    """Of the layers of one stage, all of which have experts."""
    source = experts_of(tiny_model(FAMILY, CHOICE).source, [f"model.layers.{layer}.mlp." for layer in run])
    layers = tuple(StoreLayer(name, source.layout(name)) for name in source.layers())
    seats = seats_spread(TIERING, run.stop, source.count(layers[0].name))[run.start :]
    assert np.all(seats.any(axis=1)) and not seats.all()
    store = ExpertStore.create(StorePlan(layers, seats, False), CPU, threads=1)
    with PackingThreads(1) as threads:
        for layer in range(len(layers)):
            fill_layer(store, layer, source, threads, Staging(CPU))
    tiers = ExpertTiers(store, pool, CPU, WindowSize(32, built(FAMILY, CHOICE)[0].layers[0].routed_experts))
    tiers.set_share(share_table(tiers, TIERING.in_place))
    return tiers


@contextmanager
def tiered_chain() -> Iterator[tuple[StageModel, list[ExpertTiers]]]:
    """Three stages with tiers of their own."""
    model, _ = built(FAMILY, CHOICE)
    split, pool = LayerSplit.of(len(model.layers), CUTS), Pool(1)
    tiers = [tiers_of(run, pool) for run in split.runs]
    with ExitStack() as stack:
        for each in tiers:
            stack.callback(each.close)
        parts = describe_parts(model, split, [StagePlace(CPU, each) for each in tiers])
        stages = [Stage(part, SIZES) for part in parts]
        chain = StageChain.of(stages, [stage.run for stage in stages])
        yield StageModel(chain, chain.run, model.config, model.experts_per_row), tiers


def test_replies_are_those_of_one_stage_with_all_experts_on_the_device() -> None:
    """By the device one window ahead, by the host, with a read in windows; every stage's threads were asked."""
    model, description = built(FAMILY, CHOICE)
    alone = Stage(description, SIZES)
    requests = [
        ask(token_ids_of(10, 1), 6),
        ask(token_ids_of(5, 2), 5, temperature=1.0, seed=7, frequency_penalty=0.5),
    ]
    whole = StageModel(alone, alone.run, model.config, model.experts_per_row)
    wanted = [Served(stage_engine(whole, is_ahead=True), 1).ask(request) for request in requests]
    with tiered_chain() as (chained, tiers):
        served = Served(stage_engine(chained, is_ahead=True), 2)
        for number, request in enumerate(requests):
            served.submit(number, request)
        served.finish()
        assert [served.replies[number] for number in range(2)] == wanted
        assert all(each.counts().on_cpu > 0 and each.counts().seats > 0 for each in tiers)
        counted = served.engine.experts()
        rows = 10 + 5 + 5 + 4
        assert sum(counted[place] for place in ("vram", "pcie", "cpu")) <= rows * model.experts_per_row
        assert counted["cpu"] == sum(each.counts().on_cpu for each in tiers)


def test_a_stage_whose_threads_are_gone_is_named() -> None:
    with tiered_chain() as (model, tiers):
        model.stage.set_rows(1, [RowsPart(0, 0, [5])])
        tiers[1].stop()
        with pytest.raises(EngineError, match=r"stage 2 of 3 \(cpu\): "), in_flight(model.stage):
            model.run(Variant.FORWARD, 1)
