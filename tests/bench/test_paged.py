"""A pool is measured only beside the same tokens, and its counters are those of the counted rounds."""

from dataclasses import replace

import pytest
import torch

from strata.bench import paged
from strata.bench.conversations import Conversations
from strata.bench.paged import PagedPlan, kept_share, measure_paged, spread_keys
from strata.bench.synthetic_model import make_model, synthetic_config
from strata.errors import EngineError
from strata.models.device.description import DeviceModel
from strata.models.device.synthetic import SyntheticForm

CPU = torch.device("cpu")
PLAN = PagedPlan(100, (1,), (160,), rounds=1, windows=1)


@pytest.fixture(scope="module")
def model() -> DeviceModel:
    return make_model(synthetic_config(4, True), SyntheticForm(), CPU)


def test_hits_and_bytes_are_those_of_the_rounds_that_count(model: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "KEPT_WINDOWS", 2)
    (speed,) = measure_paged(model, replace(PLAN, context=60))
    assert (speed.hits, speed.brought_bytes) == (1, 0), "the first round has brought all of a short conversation"
    assert 0 < speed.kept <= 1 and speed.speed > 0


def test_one_value_that_differs_shows_no_speed(model: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of the cells is a little larger in main memory, which need not change a token."""
    decode = Conversations.decode

    def decode_beside_a_wrong_value(self: Conversations, slots: int, windows: int) -> float:
        pools = self.stage.state.pools
        if pools is not None:
            pools.stored.values.codes[0, 0, :, 0, 3] += 0.25
            pools.forget(0)
        return decode(self, slots, windows)

    monkeypatch.setattr(Conversations, "decode", decode_beside_a_wrong_value)
    with pytest.raises(EngineError, match="no speed is shown for wrong results"):
        measure_paged(model, PLAN)


def test_the_wider_sizes_spread_the_more_blocks_stay(model: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "KEPT_WINDOWS", 4)
    shares = []
    for spread in (0.0, 6.0):
        whole = Conversations.open(model, replace(PLAN, context=2000).conversations(0))
        spread_keys(whole.stage, spread, 3)
        shares.append(kept_share(whole, 1))
    assert shares[0] < 0.3 and shares[1] > shares[0] + 0.2
