"""qwen4_exp gives the oracle's logits, and refuses what it cannot read."""

import pytest
import torch

from strata.errors import EngineError, RequestError
from strata.models import qwen4_exp
from strata.models.base import LogitRows, Segment
from strata.models.weights import TensorWeights
from strata.weights.source import MemorySource
from tests.models.tiny_qwen4_exp import tiny_config, tiny_model, tiny_tensors, tiny_text
from tests.oracle.compare import compare
from tests.oracle.configs import random_case


@pytest.mark.parametrize("seed", range(6))
def test_logits_are_transformers(seed: int) -> None:
    result = compare(random_case("qwen4_exp", 100 + seed))
    assert result.max_diff_float64 <= 1e-8
    assert result.max_diff_float32 <= 2e-4


def test_files_without_a_draft_layer_run_without_drafts() -> None:
    tensors = {name: tensor for name, tensor in tiny_tensors().items() if not name.startswith("mtp.")}
    assert (
        qwen4_exp.build(
            qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tensors), torch.float32)
        ).draft_head
        is None
    )


def test_logits_that_are_not_finite_fail_the_call() -> None:
    tensors = tiny_tensors() | {"model.hyper_connection_mixer.hc_norm.weight": torch.full((128,), float("nan"))}
    model = qwen4_exp.build(qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tensors), torch.float32))
    with pytest.raises(EngineError, match="not finite"):
        model.read([Segment(model.new_state(), tiny_text(3))])
    with pytest.raises(EngineError, match="not finite"):
        model.window([Segment(model.new_state(), tiny_text(1))])


def test_what_cannot_be_read_is_refused_before_any_state_changes() -> None:
    model, state = tiny_model(), tiny_model().new_state()
    good = Segment(state, tiny_text(3))
    with pytest.raises(RequestError, match="at least one token"):
        model.read([good, Segment(model.new_state(), tiny_text(0))])
    with pytest.raises(RequestError, match="token id 96"):
        model.read([good, Segment(model.new_state(), torch.tensor([96]))])
    with pytest.raises(RequestError, match=r"4097.*4096"):
        model.read([good, Segment(model.new_state(), tiny_text(4097))])
    assert state.position == 0


def test_the_observer_sees_every_layers_routing() -> None:
    model, seen = tiny_model(), []
    model.observe_routing(lambda layer, expert_ids: seen.append((layer, tuple(expert_ids.shape))))
    model.read([Segment(model.new_state(), tiny_text(70))])
    model.observe_routing(None)
    model.read([Segment(model.new_state(), tiny_text(70))])
    assert seen == [(layer, shape) for layer in range(4) for shape in ((64, 3), (6, 3))]


@pytest.mark.parametrize("wanted,count", [(LogitRows.NONE, 0), (LogitRows.LAST, 2), (LogitRows.ALL, 150)])
def test_logits_are_made_for_the_rows_asked_for(wanted: LogitRows, count: int) -> None:
    model, texts = tiny_model(), (tiny_text(70), tiny_text(80, 1))
    segments = [Segment(model.new_state(), text) for text in texts]
    output = model.read(segments, wanted)
    assert output.logits.shape == (count, 96) and output.hidden.shape == (150, 128)
    if wanted is LogitRows.LAST:
        whole = model.read([Segment(model.new_state(), text) for text in texts], LogitRows.ALL).logits
        assert (output.logits - whole[[69, 149]]).abs().max() < 1e-4
