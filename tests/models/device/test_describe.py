"""A built model is described part by part; what does not run on a device is refused by name."""

import pytest
import torch

from strata.errors import ModelError
from strata.models.device.describe import describe
from strata.models.device.description import AttentionMixer, DeltaMixer
from tests.gpu.tiny_models import tiny_model

CPU = torch.device("cpu")


def test_layers_know_the_places_of_their_states() -> None:
    model = tiny_model("qwen4_exp", "none").build(CPU)[1]
    mixers = [layer.mixer for layer in model.layers]
    assert [mixer.index for mixer in mixers if isinstance(mixer, DeltaMixer)] == [0, 1, 2]
    assert [mixer.index for mixer in mixers if isinstance(mixer, AttentionMixer)] == [0]
    assert [layer.ngram.index for layer in model.layers if layer.ngram is not None] == [0, 1]
    assert (model.sizes.delta_layers, model.sizes.attention_layers, model.sizes.ngram_layers) == (3, 1, 2)


def test_an_indexer_is_multiplied_with_the_queries_keys_and_values() -> None:
    mixer = tiny_model("qwen4_exp", "none").build(CPU)[1].layers[3].mixer
    assert isinstance(mixer, AttentionMixer)
    shape = mixer.layer.shape
    assert shape.indexer is not None
    assert len(mixer.projections.parts) == 1
    assert mixer.projections.shape[0] == shape.projected_width + shape.indexer.width


def test_vectors_of_all_delta_nets_lie_together() -> None:
    model = tiny_model("qwen3_5_moe", "none").build(CPU)[1]
    mixer = model.layers[1].mixer
    assert model.delta_vectors is not None
    assert isinstance(mixer, DeltaMixer)
    assert mixer.vectors.conv.data_ptr() == model.delta_vectors.conv[1].data_ptr()


def test_other_models_are_refused() -> None:
    with pytest.raises(ModelError, match="class dict do not run on a GPU"):
        describe({}, CPU)
