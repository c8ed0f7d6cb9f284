"""Published names lead to canonical ones, whatever a release puts before them."""

import pytest

from strata.weights.names import (
    Part,
    PublishedName,
    is_fp8_matrix,
    is_hash_constant,
    is_vision_name,
    read_published_name,
    weight_of_scale,
)

CASES = {
    "model.embed_tokens.weight": PublishedName("model.embed_tokens.weight", Part.WHOLE),
    "model.language_model.embed_tokens.weight": PublishedName("model.embed_tokens.weight", Part.WHOLE),
    "language_model.model.norm.weight": PublishedName("model.norm.weight", Part.WHOLE),
    "language_model.lm_head.weight": PublishedName("lm_head.weight", Part.WHOLE),
    "lm_head.weight": PublishedName("lm_head.weight", Part.WHOLE),
    "model.layers.3.mlp.experts.17.up_proj.weight": PublishedName(
        "model.layers.3.mlp.experts.gate_up_proj", Part.UP, 17
    ),
    "model.language_model.layers.3.mlp.experts.0.gate_proj.weight": PublishedName(
        "model.layers.3.mlp.experts.gate_up_proj", Part.GATE, 0
    ),
    "model.layers.3.mlp.experts.511.down_proj.weight": PublishedName(
        "model.layers.3.mlp.experts.down_proj", Part.DOWN, 511
    ),
    "model.language_model.layers.3.mlp.experts.gate_up_proj": PublishedName(
        "model.layers.3.mlp.experts.gate_up_proj", Part.WHOLE
    ),
    "model.layers.3.mlp.shared_expert.gate_proj.weight": PublishedName(
        "model.layers.3.mlp.shared_expert.gate_proj.weight", Part.WHOLE
    ),
    "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_511.weight": PublishedName(
        "model.layers.1.ple.ple_embedding.ngram_embedding.weight", Part.ROWS, 511
    ),
    "mtp.fc_hidden.weight": PublishedName("mtp.fc_hidden.weight", Part.WHOLE),
    "model.mtp.layers.0.mlp.experts.2.down_proj.weight": PublishedName(
        "mtp.layers.0.mlp.experts.down_proj", Part.DOWN, 2
    ),
    "model.language_model.mtp.fc_hidden.weight": PublishedName("mtp.fc_hidden.weight", Part.WHOLE),
}


@pytest.mark.parametrize("published", CASES)
def test_a_published_name_leads_to_its_canonical_one(published: str) -> None:
    assert read_published_name(published) == CASES[published]


def test_canonical_names_stay_as_they_are() -> None:
    for name in {place.canonical for place in CASES.values()}:
        assert read_published_name(name) == PublishedName(name, Part.WHOLE)


def test_an_absurd_index_does_not_stop_the_reading() -> None:
    assert read_published_name(f"model.layers.0.mlp.experts.{'9' * 9000}.up_proj.weight").part is Part.UP


def test_vision_tensors_are_told_apart() -> None:
    assert is_vision_name("visual.blocks.0.attn.qkv.weight")
    assert is_vision_name("model.visual.patch_embed.proj.bias")
    assert is_vision_name("model.language_model.visual.merger.weight")
    assert not is_vision_name("model.layers.0.visual_gate.weight")


def test_scales_know_their_weights() -> None:
    assert weight_of_scale("a.down_proj.weight_scale_inv") == "a.down_proj.weight"
    assert weight_of_scale("a.experts.down_proj_scale_inv") == "a.experts.down_proj"
    assert weight_of_scale("a.down_proj.weight") is None


def test_kinds_of_tensors_by_name() -> None:
    assert is_fp8_matrix("model.layers.0.mlp.experts.gate_up_proj")
    assert is_fp8_matrix("model.layers.0.linear_attn.in_proj_qkv.weight")
    for name in (
        "mlp.gate.weight",
        "mlp.shared_expert_gate.weight",
        "linear_attn.in_proj_a.weight",
        "ple.key_proj.weight",
    ):
        assert not is_fp8_matrix(f"model.layers.0.{name}")
    assert not is_fp8_matrix("model.embed_tokens.weight")
    assert is_hash_constant("model.layers.1.ple.ple_embedding.layer_multipliers")
    assert not is_hash_constant("model.layers.1.ple.ple_embedding.ngram_embedding.weight")
