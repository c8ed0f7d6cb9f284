"""Routers are scaled so that rows take experts as often as the law of drawn traces says."""

import numpy as np
import pytest
import torch

from strata.bench.popular_routing import MOST_TAKEN, ONE_TOPIC, LawfulRouting, popularity, router_scales
from strata.bench.routed_windows import RoutedWindows
from strata.bench.synthetic_model import scales_of, synthetic_config
from strata.experts.synthetic_trace import RoutingShape, draw_routing
from strata.models.device.synthetic import SyntheticForm, SyntheticWeights
from strata.weights.presets import STYLES


def test_the_law_gives_a_quarter_of_the_experts_five_sixths_of_the_choices() -> None:
    """64 of 512 seats hit 69 %, which is what is published of such a model."""
    shares = popularity(512, 10)
    assert shares.sum() == pytest.approx(10)
    assert np.all(np.diff(shares) <= 0)
    assert shares[:64].sum() / 10 == pytest.approx(0.69, abs=0.02)
    assert shares[:128].sum() / 10 == pytest.approx(0.83, abs=0.02)


def test_what_windows_take_by_the_law_is_what_drawn_rows_take() -> None:
    law = LawfulRouting.of(512, 10, (1, 8))
    assert law.distinct[1] == pytest.approx(10)
    ids = draw_routing(ONE_TOPIC, RoutingShape(4096, 1, 1, 512, 10)).reshape(64, 64, 10)[:, ::8]  # far rows of a window
    drawn = np.mean([len(np.unique(window)) for window in ids])
    assert law.distinct[8] == pytest.approx(drawn, rel=0.03)
    assert (law.hottest_quarter, law.hottest_half) == (pytest.approx(0.83, abs=0.02), pytest.approx(0.96, abs=0.02))


def test_rows_of_random_logits_with_these_scales_follow_the_law() -> None:
    logits = np.random.default_rng(0).standard_normal((4000, 512)) * router_scales(512, 10)
    ids = np.argpartition(logits, -10, axis=-1)[:, None, None, -10:]
    wanted = popularity(512, 10).clip(0, MOST_TAKEN)
    counts = RoutedWindows.of_choices(ids, 512).counts.sum(axis=(0, 1)) / 4000
    assert counts[:128].sum() / 10 == pytest.approx(0.81, abs=0.01)
    assert np.abs(counts - wanted).max() < 0.05


def test_every_layer_has_its_own_order_and_nothing_else_changes() -> None:
    config = synthetic_config(2, True)
    shapes = {
        "model.layers.0.mlp.gate.weight": (16, 64),
        "model.layers.1.mlp.gate.weight": (16, 64),
        "x.weight": (4, 64),
    }
    plain = SyntheticWeights(shapes, STYLES["qwen4_exp"], torch.device("cpu"), SyntheticForm())
    scales = scales_of(config)
    popular = SyntheticWeights(shapes, STYLES["qwen4_exp"], torch.device("cpu"), SyntheticForm(), scales)
    found = []
    for name in shapes:
        before, after = (weights.matrix(name).parts[0].decode() for weights in (plain, popular))  # type: ignore[union-attr]
        factors = after.norm(dim=1) / before.norm(dim=1)
        torch.testing.assert_close(after, before * factors[:, None])
        found.append(factors)
    for factors in found[:2]:
        torch.testing.assert_close(factors.sort().values, scales.sort().values)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[2], torch.ones(4))
