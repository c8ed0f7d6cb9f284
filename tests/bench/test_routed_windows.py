"""What windows took is counted by layer, and the hottest experts are judged by windows that did not name them."""

import numpy as np
import pytest
import torch

from strata.bench.conversations import ConversationPlan, Conversations
from strata.bench.routed_windows import RoutedWindows
from strata.bench.synthetic_model import make_model, synthetic_config
from strata.bench.window_bytes import expected_distinct
from strata.models.device.synthetic import SyntheticForm


def test_counts_choices_and_different_experts_of_every_layer() -> None:
    ids = np.array([[[[0, 1], [1, 2]], [[3, 4], [0, 5]]]])  # one window, two layers, two rows of two ranks
    windows = RoutedWindows.of_choices(ids, 6)
    assert windows.counts.tolist() == [[[1, 2, 1, 0, 0, 0], [1, 0, 0, 1, 1, 1]]]
    assert windows.distinct == (3, 4)
    assert (windows.choices, windows.experts) == (4, 6)
    assert RoutedWindows.joined([windows, windows]).counts.shape == (2, 2, 6)


def test_where_all_experts_are_alike_the_hottest_get_their_part_and_no_more() -> None:
    """A few choices a layer: the hottest of the same windows would have got all of them."""
    rng = np.random.default_rng(0)
    ids = rng.permuted(np.tile(np.arange(64), (8, 50, 1, 1)), axis=-1)[..., :4]
    assert RoutedWindows.of_choices(ids, 64).share_of_hottest(25) == pytest.approx(0.25, abs=0.03)


def test_an_expert_that_is_always_taken_is_among_the_hottest() -> None:
    ids = np.array([[[[3, window % 3]]] for window in range(8)])
    assert RoutedWindows.of_choices(ids, 4).share_of_hottest(25) == pytest.approx(0.5)


def test_a_recorded_window_gives_the_same_tokens_and_counts_every_row_once() -> None:
    model = make_model(synthetic_config(2, True), SyntheticForm(), torch.device("cpu"))
    run, again = (Conversations.open(model, ConversationPlan((3,), 20, 2)) for _ in range(2))
    again.decode(3, 2)
    windows = run.routed(3, 2)
    assert run.tokens(3) == again.tokens(3)
    assert windows.counts.shape == (2, 2, 16)
    assert windows.counts.sum(axis=-1).tolist() == [[12, 12], [12, 12]]  # 3 rows of 4 ranks


def test_rows_of_a_deep_model_choose_each_for_itself() -> None:
    """Weights with a mean would turn all rows into one direction: the fourth layer had 8 different experts, not 25."""
    config, slots = synthetic_config(4, True), 8
    sizes = {"hidden_size": 512, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "num_experts": 64}
    config["text_config"].update(sizes)
    model = make_model(config, SyntheticForm(experts_bits=2.25), torch.device("cpu"))
    windows = Conversations.open(model, ConversationPlan((slots,), 20, 2)).routed(slots, 2)
    assert windows.distinct == pytest.approx([expected_distinct(4, 64, slots)] * 4, rel=0.15)
