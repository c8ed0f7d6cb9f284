"""What a window must read follows from the model; a speed is shown only for windows that gave right tokens."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity

from strata.bench import conversations, kernel_profile
from strata.bench.conversations import ConversationPlan, Conversations
from strata.bench.decode import DecodePlan, DecodeSpeed, measure_decode
from strata.bench.kernel_profile import kernels_by_layer, profile_kernels, sum_by_name
from strata.bench.popular_routing import LawfulRouting
from strata.bench.spread import Spread
from strata.bench.synthetic_model import AskedRoom, make_model, require_room, synthetic_config
from strata.bench.window_bytes import WindowBytes, expected_distinct, window_bytes
from strata.errors import EngineError, ModelError
from strata.hardware import GpuFacts, MemoryFacts
from strata.models.device.description import DeviceModel
from strata.models.device.launches import Launch
from strata.models.device.synthetic import SyntheticForm
from strata.quant.cell_codes import CellKind

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture(scope="module")
def model() -> DeviceModel:
    return make_model(synthetic_config(4, True), SyntheticForm(), CPU)


@pytest.fixture(scope="module")
def narrow() -> DeviceModel:
    """One layer: its windows are quick."""
    return make_model(synthetic_config(1, True), SyntheticForm(), CPU)


def test_distinct_experts_of_rows_that_choose_at_random() -> None:
    assert expected_distinct(10, 512, 1) == pytest.approx(10)
    assert expected_distinct(10, 512, 8) == pytest.approx(74.7, abs=0.1)
    drawn = [len({int(e) for _ in range(8) for e in torch.randperm(512)[:10]}) for _ in range(200)]
    assert expected_distinct(10, 512, 8) == pytest.approx(sum(drawn) / 200, rel=0.02)


def test_more_conversations_share_the_dense_bytes_and_have_state_and_cells_of_their_own(model: DeviceModel) -> None:
    one, four = (window_bytes(model, slots, 50, CellKind.BF16) for slots in (1, 4))
    assert one.dense == four.dense
    assert (four.state, four.cells) == (4 * one.state, 4 * one.cells)
    assert one.routed < four.routed < 4 * one.routed
    assert one.total == one.dense + one.routed + one.state + one.cells
    blob = model.layers[0].mlp.blobs.layout.total_bytes  # type: ignore[union-attr]
    assert one.routed == 4 * 4 * blob  # four layers, four experts a row


def test_an_indexer_bounds_the_cells_that_a_row_reads(model: DeviceModel) -> None:
    cell, pooled = 2 * 1 * 32 * 2, 16 * 4  # one layer of one key head of 32; an indexer of 16
    assert window_bytes(model, 1, 60, CellKind.BF16).cells == 60 * cell
    assert window_bytes(model, 1, 1000, CellKind.BF16).cells == 64 * cell + 250 * pooled
    assert window_bytes(model, 1, 60, CellKind.INT8).cells == 60 * 2 * (32 + 2)


def test_the_published_shape_needs_what_the_design_counted() -> None:
    """Four layers: 40 experts of 2.76 MB, and 9.4 MB of delta-net state twice."""
    config = synthetic_config(4, False)
    fewer = {"num_experts": 12, "vocab_size": 8192, "eos_token_id": 0, "ngram_vocab_size_base": 100}
    config["text_config"].update(fewer)  # as many are chosen, fewer are made
    found = window_bytes(make_model(config, SyntheticForm(), CPU), 1, 30_000, CellKind.BF16)
    assert found.routed / 40 == pytest.approx(2.76e6, rel=0.01)
    assert found.state / 2 == pytest.approx(3 * 48 * 128 * 128 * 4, rel=0.1)  # and the tails of convolutions
    assert found.cells == 2048 * 2 * 2 * 256 * 2 + 7500 * 128 * 4


@pytest.fixture
def _one_gate_window(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(conversations, "GATE_WINDOWS", 1)
    monkeypatch.setattr(conversations, "PROFILED_WINDOWS", 1)
    yield


@pytest.mark.usefixtures("_one_gate_window")
def test_every_pair_is_measured_in_rounds_and_profiled_by_step(narrow: DeviceModel) -> None:
    told: list[tuple[str, int, int]] = []
    plan = DecodePlan(contexts=(20, 40), slots=(1, 2), rounds=1, windows=1, with_profile=True)
    result = measure_decode(narrow, plan, None, lambda *each: told.append(each))
    speeds = result.speeds
    assert result.law is None
    assert [(each.context, each.slots) for each in speeds] == list(itertools.product((20, 40), (1, 2)))
    for speed in speeds:
        assert speed.tokens_per_second.median == pytest.approx(1e3 * speed.slots / speed.window_ms.median)
        assert (speed.limit_ms, speed.share, speed.gap_us, speed.kernels) == (None, None, None, ())
        assert any("delta: rule" in line for line in speed.profile)
    assert told[0] == ("decoding", 0, 8)
    assert told[-1] == ("decoding", 8, 8)


@pytest.mark.usefixtures("_one_gate_window")
def test_what_popular_experts_were_made_for_stands_beside_what_windows_took(narrow: DeviceModel) -> None:
    plan = DecodePlan(contexts=(20,), slots=(2,), rounds=1, windows=1, routed_windows=2, is_popular=True)
    law = measure_decode(narrow, plan, None).law
    assert law == LawfulRouting.of(16, 4, (2,))


@pytest.mark.usefixtures("_one_gate_window")
def test_no_speed_for_windows_that_give_no_token(narrow: DeviceModel) -> None:
    run = Conversations.open(narrow, ConversationPlan((1,), 20, 1))
    run.stage.state.delta.fill_(float("nan"))
    with pytest.raises(EngineError, match="no speed is shown"):
        run.decode(1, 1)


@pytest.mark.usefixtures("_one_gate_window")
def test_no_speed_where_company_changes_an_answer(narrow: DeviceModel) -> None:
    run = Conversations.open(narrow, ConversationPlan((2,), 20, 1))
    run.check(2)
    found = iter(([5], [6, 7]))
    run.tokens = lambda slots: next(found)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=r"goes on with \[5\] alone and with \[6\] beside 1 others"):
        run.check(2)


def test_shares_and_gaps_follow_from_the_times() -> None:
    spread = Spread(2.0, 1.9, 2.2)
    speed = DecodeSpeed(1024, 1, spread, spread, WindowBytes(1, 1, 1, 1), 1.0, 1.0, 0.5, 200.0, 1.4)
    assert speed.share == 0.25
    assert speed.gap_us == pytest.approx(3.0)


def test_kernels_overlap_where_the_gap_is_below_zero() -> None:
    spread = Spread(1.0, 1.0, 1.0)
    speed = DecodeSpeed(1024, 1, spread, spread, WindowBytes(1, 1, 1, 1), 1.0, 1.0, 0.5, 200.0, 1.4)
    assert speed.gap_us == pytest.approx(-2.0)


def test_kernels_are_counted_by_kind_of_layer() -> None:
    program = [
        Launch(layer, kind, step, lambda: None)
        for layer, kind, step in (
            (None, "window", "embed"), (0, "delta", "in"), (0, "delta", "rule"), (1, "delta", "in"),
            (2, "attention", "in"), (3, "delta", "in"), (None, "commit", "commit"),
        )
    ]  # fmt: skip
    found = kernels_by_layer(program, [9, 1, 2, 3, 4, 5, 9])
    assert found == {"delta": {3: 2, 5: 1}, "attention": {4: 1}}


def test_the_profiler_has_nothing_to_warn_of(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    """Torch warns of a profiler that is prepared again unless events are kept; here on the CPU."""

    class PreparedAgain(torch.profiler.profile):
        def start_trace(self) -> None:
            self.prepare_trace()
            super().start_trace()

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(kernel_profile, "profile", PreparedAgain)
    monkeypatch.setattr(kernel_profile, "ProfilerActivity", SimpleNamespace(CUDA=ProfilerActivity.CPU))
    assert profile_kernels(lambda: torch.zeros(3).sum(), 1) == ()
    assert [str(each.message) for each in recwarn if "Profiler clears" in str(each.message)] == []


def test_kernels_are_summed_by_name_without_copies() -> None:
    events = [("a", 2.0), ("b", 10.0), ("a", 4.0), ("Memcpy HtoD", 99.0), ("Memset (Device)", 1.0), ("a", 3.0)]
    found = sum_by_name(events, 3)
    assert [(each.name, each.launches, each.microseconds) for each in found] == [
        ("b", pytest.approx(1 / 3), pytest.approx(10 / 3)),
        ("a", 1, 3.0),
    ]


def test_a_card_without_room_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.bench import synthetic_model

    memory = MemoryFacts(64 * GIB, 60 * GIB)
    monkeypatch.setattr(synthetic_model, "read_memory", lambda: memory)
    monkeypatch.setattr(synthetic_model, "read_gpus", lambda: (GpuFacts("a card", 24 * GIB, 23 * GIB, (8, 9)),))
    fitting = require_room(synthetic_config(12, False), SyntheticForm(), AskedRoom(1, 4096))  # 17 GB of experts
    assert fitting.refusal is None
    with pytest.raises(ModelError, match=r"the 31\.6 GiB of experts do not fit on a card .* or say --cache"):
        require_room(synthetic_config(24, False), SyntheticForm(), AskedRoom(1, 4096))
    half = require_room(synthetic_config(24, False), SyntheticForm(), AskedRoom(1, 4096, cache_percent=50))
    assert half.seat_share == pytest.approx(0.5, abs=0.001)
    with pytest.raises(ModelError):
        require_room(synthetic_config(24, False), SyntheticForm(), AskedRoom(1, 4096, cache_percent=90))
