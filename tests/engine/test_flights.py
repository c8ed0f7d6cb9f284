"""Windows of a stage with experts in tiers: on every road the CPU may be asked from launch to landing and no longer.

What the CPU cannot answer ends the requests of its window, one that never answers ends the engine's step in time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from strata.engine import device_windows
from strata.engine.flights import forget, in_flight, launching
from strata.engine.graphs import WindowGraphs
from strata.engine.request import TokenRequest
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.engine.stage_model import StageModel
from strata.engine.stage_profile import profiled_run
from strata.errors import DeviceLostError, EngineError
from strata.experts.doorbell import ANSWER_LIMIT_S, DoorbellService
from strata.experts.tiers import ExpertTiers
from strata.native import library
from strata.native.pool import Pool
from strata.types import FinishReason
from tests.engine.served import Served, ask
from tests.engine.stages import stage_engine
from tests.engine.tiered_stages import Tiering, built, tiered
from tests.experts.busy_pool import slowed, stick
from tests.random_text import token_ids_of

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

MODEL = ("qwen3_moe", "code8")
both_waits = pytest.mark.parametrize("waits_in_stream", [False, True])
both_ways = pytest.mark.parametrize("is_ahead", [True, False])


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


def served_of(model: Any, description: Any, is_ahead: bool) -> Served:
    stage = Stage(description, StageSizes(2, 128))
    run = WindowGraphs(stage).run
    return Served(stage_engine(StageModel(stage, run, model.config, model.experts_per_row), is_ahead=is_ahead), 2)


@contextmanager
def tiered_served(
    pool: Pool,
    *,
    is_ahead: bool,
    seats: float = 0.25,
    limit_s: float = ANSWER_LIMIT_S,
    waits_in_stream: bool = False,
) -> Iterator[tuple[Served, ExpertTiers]]:
    tiering = Tiering(seats, 0.3, waits_in_stream=waits_in_stream)
    with tiered(*MODEL, tiering, pool, limit_s) as (model, description):
        yield served_of(model, description, is_ahead), description.tiers  # type: ignore[misc]


def is_at_rest(tiers: ExpertTiers) -> bool:
    return (tiers.windows[0].waiting_for() or "").startswith("0 windows") and not tiers._service.state(0).is_in_flight


def requests() -> list[TokenRequest]:
    return [ask(token_ids_of(40, 1), 6), ask(token_ids_of(7, 2), 9, temperature=0.9, seed=3)]


@both_ways
def test_replies_are_those_of_a_stage_with_all_experts(is_ahead: bool, pool: Pool) -> None:
    plain = served_of(*built(*MODEL), is_ahead)
    with tiered_served(pool, is_ahead=is_ahead) as (served, tiers):
        for number, request in enumerate(requests()):
            plain.submit(number, request)
            served.submit(number, request)
        plain.finish()
        served.finish()
        assert served.replies == plain.replies
        assert is_at_rest(tiers)
        counts = tiers.counts()
        assert min(counts.seats, counts.in_place, counts.on_cpu) > 0


@both_ways
def test_an_answer_that_fails_ends_its_windows_requests_and_the_next_ones_go_on(is_ahead: bool, pool: Pool) -> None:
    with tiered_served(pool, is_ahead=is_ahead, seats=0.0) as (served, tiers):
        wanted = served.ask(requests()[1])
        places = tiers.tables[1].in_place.tolist()
        for number, request in enumerate(requests()):
            served.submit(number, request)
        while min(len(reply) for reply in served.replies.values()) < 2:
            served.turn()
        for expert in range(len(places)):
            tiers.set_in_ram(1, expert, 0)
        while not {0, 1} <= served.ends.keys():
            served.turn()
        for number in (0, 1):
            assert served.ends[number].reason is FinishReason.ERROR
            assert "failed in layer 1 (model.layers.1.mlp.)" in (served.ends[number].error or "")
        served.submit(2, requests()[1])  # a prompt that cannot be read
        served.finish()
        assert "failed in layer 1" in (served.ends[2].error or "")
        for expert, address in enumerate(places):
            tiers.set_in_ram(1, expert, address)
        assert served.ask(requests()[1]) == wanted
        assert is_at_rest(tiers)


@both_ways
@both_waits
def test_a_pool_that_stops_answering_ends_the_step_in_time(is_ahead: bool, waits_in_stream: bool) -> None:
    how: dict[str, Any] = {"is_ahead": is_ahead, "seats": 0.0, "limit_s": 0.2, "waits_in_stream": waits_in_stream}
    with Pool(2) as pool, tiered_served(pool, **how) as (served, _):
        served.submit(0, requests()[0])
        while len(served.replies[0]) < 2:
            served.turn()
        stuck = stick(pool, 1.5)
        with pytest.raises(DeviceLostError, match=r"gave no answer in layer 0 .*started again"):
            served.finish()
        assert stuck.is_alive()
        with pytest.raises(DeviceLostError, match="started again"):
            served.finish()
        stuck.join()


def test_what_is_in_flight_when_all_is_forgotten_has_landed(pool: Pool) -> None:
    with tiered_served(pool, is_ahead=True) as (served, tiers):
        served.submit(0, ask(token_ids_of(9), 30))
        while len(served.replies[0]) < 3:
            served.turn()
        assert not is_at_rest(tiers), "one window runs ahead"
        served.engine.forget_all()
        assert is_at_rest(tiers)


def test_a_clean_up_ends_whatever_the_threads_say_and_the_next_launch_tells(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise EngineError("the service cannot be spoken with")

    with tiered(*MODEL, Tiering(0.0), pool) as (_, description):
        stage, tiers = Stage(description, StageSizes(2, 64), (1,)), description.tiers
        assert tiers is not None
        with launching(stage):
            pass
        with monkeypatch.context() as context:
            context.setattr(DoorbellService, "state", refused)
            forget(stage)
        with pytest.raises(ValueError, match="no window is in flight"):
            tiers.windows[0].landed()
        with pytest.raises(EngineError, match="mailbox 0 is in flight"), launching(stage):
            raise AssertionError("the threads still think that a window is in flight")


@pytest.mark.parametrize("prepare", [lambda stage: WindowGraphs(stage), profiled_run], ids=["graphs", "profile"])
def test_preparing_windows_asks_nobody(prepare: Any, pool: Pool) -> None:
    with tiered(*MODEL, Tiering(0.0), pool) as (_, description):
        prepare(Stage(description, StageSizes(2, 64), (1, 32)))
        tiers = description.tiers
        assert tiers is not None
        assert is_at_rest(tiers)
        assert tiers.counts().cpu.requests == 0


def test_an_interrupt_while_a_window_is_waited_for_leaves_nothing_in_flight(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with tiered_served(pool, is_ahead=True) as (served, tiers):
        wanted = served.ask(requests()[1])
        served.submit(0, ask(token_ids_of(9), 30))
        while len(served.replies[0]) < 3:
            served.turn()
        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
            context.setattr(device_windows, "land", interrupted)
            served.turn()
        served.engine.forget_all()
        assert is_at_rest(tiers)
        assert Served(served.engine, 2).ask(requests()[1]) == wanted


@both_waits
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_window_that_is_cut_off_behind_its_request_harms_no_other(
    waits_in_stream: bool, is_slow: bool, pool: Pool
) -> None:
    tiering = Tiering(0.0, waits_in_stream=waits_in_stream)
    busy = slowed(pool) if is_slow else nullcontext()
    with busy, tiered(*MODEL, tiering, pool) as (_, description):
        stage, tiers = Stage(description, StageSizes(2, 64), (4,)), description.tiers
        assert tiers is not None
        stage.set_rows(4, [RowsPart(0, 0, token_ids_of(4))])
        wanted = []
        for _ in range(3):
            with in_flight(stage):
                stage.forward(4)
            wanted.append(stage.logits(4).clone())
            with pytest.raises(KeyboardInterrupt), in_flight(stage):
                for launch in stage.launches(Variant.FORWARD, 4):
                    launch.run()
                    if launch.step == "experts: plan":
                        raise KeyboardInterrupt
            assert is_at_rest(tiers)
            assert tiers._service.state(0).failures == 0
        assert torch.equal(wanted[0], wanted[1])
        assert torch.equal(wanted[0], wanted[2])


@both_waits
def test_a_stop_lets_windows_run_to_their_ends_without_anybody(waits_in_stream: bool, pool: Pool) -> None:
    with tiered(*MODEL, Tiering(0.0, waits_in_stream=waits_in_stream), pool) as (_, description):
        stage, tiers = Stage(description, StageSizes(2, 64), (4,)), description.tiers
        assert tiers is not None
        stage.set_rows(4, [RowsPart(0, 0, token_ids_of(4))])
        with pytest.raises(DeviceLostError, match="were stopped"), in_flight(stage):
            for launch in stage.launches(Variant.FORWARD, 4):
                launch.run()
                if launch.step == "experts: plan":
                    tiers.stop()
            stage.forward(4)


def test_a_launch_that_fails_leaves_nothing_in_flight(pool: Pool) -> None:
    with tiered(*MODEL, Tiering(0.0), pool) as (_, description):
        stage, tiers = Stage(description, StageSizes(2, 64), (1,)), description.tiers
        assert tiers is not None
        for road in (in_flight(stage), launching(stage)):
            with pytest.raises(KeyboardInterrupt), road:
                assert not is_at_rest(tiers)
                raise KeyboardInterrupt
            assert is_at_rest(tiers)


def test_the_pools_failure_is_told_rather_than_what_followed_from_it(pool: Pool) -> None:
    with tiered(*MODEL, Tiering(0.0), pool) as (_, description):
        stage, tiers = Stage(description, StageSizes(2, 64), (1,)), description.tiers
        assert tiers is not None
        with pytest.raises(EngineError, match="failed in layer 7, which is none") as caught, in_flight(stage):
            ask_for_a_layer_that_is_none(tiers)
            raise EngineError("the logits are not finite")
        assert "not finite" in str(caught.value.__context__)


def test_an_interrupt_is_told_rather_than_what_it_makes_fail(pool: Pool) -> None:
    with tiered(*MODEL, Tiering(0.0), pool) as (_, description):
        stage, tiers = Stage(description, StageSizes(2, 64), (1,)), description.tiers
        assert tiers is not None
        with pytest.raises(KeyboardInterrupt), in_flight(stage):
            ask_for_a_layer_that_is_none(tiers)
            raise KeyboardInterrupt
        assert is_at_rest(tiers)


def ask_for_a_layer_that_is_none(tiers: ExpertTiers) -> None:
    """Returns when the answer, a failure, is there."""
    tiers.mailboxes[0].header.copy_(torch.tensor([7, 1, 1]))
    tiers.mailboxes[0].door.add_(1)
    while not tiers._service.state(0).answered:
        time.sleep(0.001)
