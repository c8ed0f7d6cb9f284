"""What is measured is what windows do: a layer's own launch over experts in main memory, list by list, by any blob."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from strata.engine.flights import in_flight
from strata.engine.reading_in_place import ROWS_STEP, program_of, reading_in_place
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.experts.pool import ExpertPool, ExpertRows
from strata.experts.share_measuring import listed_experts
from strata.models.device.launches import Launch
from strata.native import library
from strata.native.pool import Pool
from tests.engine.tiered_stages import Tiering, sparse_layers, store_of, tiered
from tests.random_text import token_ids_of

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
TIERING = Tiering(0.5)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


@pytest.mark.parametrize(("family", "choice"), [("qwen3_moe", "code8"), ("qwen4_exp", "code4")])
def test_every_list_is_computed_where_it_lies_and_windows_go_on_as_before(family: str, choice: str, pool: Pool) -> None:
    with tiered(family, choice, TIERING, pool) as (_, description):
        assert description.tiers is not None
        stage, ranks = Stage(description, StageSizes(2, 64), (1, 4)), description.tiers.mailboxes[0].out.shape[1]
        lists = listed_experts(store_of(family, choice, TIERING), ranks)
        assert len({each.layer for each in lists}) > 1
        before = window_of(stage)
        for write, rows in zip(*[iter(program_of(stage, lists))] * 2, strict=True):
            write.run()
            rows.run()
            listed = lists.pop(0)
            _, _, x, made, *_ = arguments(rows)
            assert rows.layer == sparse_layers(description)[listed.layer]
            numbers = torch.arange(ranks, dtype=torch.int32)
            asked = [ExpertRows(blob, numbers[:1], numbers[n : n + 1]) for n, blob in enumerate(listed.blobs)]
            wanted = torch.zeros(ranks, listed.layout.gate.columns)
            ExpertPool(pool, listed.layout).compute(asked, x.plain, wanted)
            assert torch.equal(made.by_rank[0], wanted)
            assert wanted.abs().sum() > 0
        assert torch.equal(window_of(stage), before)


def test_a_replay_runs_all_lists(pool: Pool) -> None:
    with tiered("qwen3_moe", "code8", TIERING, pool) as (_, description):
        stage = Stage(description, StageSizes(2, 64), (1,))
        lists = listed_experts(store_of("qwen3_moe", "code8", TIERING), 2)
        read, ran = reading_in_place(stage, lists), []
        for launch in stage.launches(Variant.FORWARD, 1):
            if launch.step == ROWS_STEP:
                ran.append(launch)
                arguments(launch)[3].by_rank.fill_(torch.nan)
        read()
        for launch in ran:
            blobs, _, _, made, *_ = arguments(launch)
            assert blobs.addresses[:2].tolist() == [blob.data_ptr() for blob in lists[-1].blobs]
            assert not made.by_rank[0, :2].isnan().any()


def arguments(launch: Launch) -> tuple[Any, ...]:
    """Blobs, work, rows and buffers of a launch of experts."""
    assert isinstance(launch.run, partial)
    return launch.run.args


def window_of(stage: Stage) -> torch.Tensor:
    """Logits of a row behind nothing."""
    with in_flight(stage):
        stage.set_rows(1, [RowsPart(0, 0, token_ids_of(1))])
        stage.forward(1)
    return stage.logits(1).clone()
