"""Same prompt, same answer while experts change seats: windows' bits with swaps are those without any tier."""

from functools import cache

import numpy as np
import pytest
import torch

from strata.engine.stage_model import StageModel
from strata.experts.cache import SwapRule
from strata.experts.streams import PlainStreams
from strata.experts.swapping import Swapper
from strata.models.base import LogitRows, Segment
from strata.native import library
from tests.engine.test_tier_loading import loaded, planned

pytestmark = [
    pytest.mark.skipif(not library.is_available(), reason="the native library was not built"),
    pytest.mark.usefixtures("library_products"),
]
EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)  # seats change with every window


def replies(model: StageModel) -> torch.Tensor:
    """Logits of two conversations that decode the same tokens of their own, after prompts that were read."""
    states = [model.new_state() for _ in range(2)]
    found = []
    for state, start in zip(states, (0, 50), strict=True):
        found.append(model.read([Segment(state, (start + torch.arange(37)) % 96)], LogitRows.ALL).logits)
    for position in range(16):
        rows = [Segment(state, torch.tensor([(7 * position + 41 * n) % 96])) for n, state in enumerate(states)]
        window = model.window(rows)
        found.append(window.output.logits)
        model.commit(window, [1, 1])
    for state in states:
        model.release(state)
    return torch.cat(found)


@cache
def wanted(name: str) -> torch.Tensor:
    return replies(loaded(name, planned(name, None)).model)


@pytest.mark.parametrize(
    ("name", "is_exclusive", "halves_in_place"),
    [("qwen4_exp", True, 1), *(("qwen3_moe", is_exclusive, halves) for is_exclusive in (0, 1) for halves in (0, 1, 2))],
)
def test_bits_are_those_of_a_model_with_every_seat(name: str, is_exclusive: bool, halves_in_place: int) -> None:
    found = loaded(name, planned(name, 0.4, is_exclusive=is_exclusive))
    assert found.tiers is not None
    store, tiers = found.tiers.store, found.tiers.tiers
    misses = torch.arange(tiers.tables[0].share.numel())
    tiers.set_share((misses * halves_in_place // 2).int())
    swapper = Swapper(store, tiers, tiers.asked, PlainStreams(), EAGER)
    tiers.follow(swapper.before_launch)
    assert torch.equal(replies(found.model), wanted(name))
    while swapper._moves:
        tiers.windows[0].launched(is_read=True)
        tiers.windows[0].landed()
    assert swapper.swaps > 5
    assert np.array_equal(torch.stack([tables.resident for tables in tiers.tables]).numpy(), store.resident)
    assert not is_exclusive or np.all((store.resident != 0) ^ (store.in_ram != 0))
    counts = tiers.counts()
    assert counts.seats > 0
    assert (counts.in_place > 0) == (halves_in_place > 0)
    assert (counts.on_cpu > 0) == (halves_in_place < 2)
