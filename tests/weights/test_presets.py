"""Presets are configs that their family takes; layers and fields can be changed."""

import pytest

from strata.errors import SettingsError
from strata.weights.presets import PRESETS, STYLES, preset_config, set_fields, set_layers, style_of, text_part


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", STYLES)
def test_a_preset_is_nested_as_its_release_and_fresh(family: str, preset: str) -> None:
    config = preset_config(family, preset)
    assert config["model_type"] == family
    assert ("text_config" in config) == (STYLES[family].prefix == "model.language_model.")
    assert "vision_config" not in config
    text_part(config)["hidden_size"] = -1
    assert text_part(preset_config(family, preset))["hidden_size"] > 0


def test_names_that_do_not_exist_are_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"'qwen4exp' \(did you mean qwen4_exp\?\)"):
        preset_config("qwen4exp", "tiny")
    with pytest.raises(SettingsError, match="no preset 'huge'; there are: tiny, published"):
        preset_config("qwen3_moe", "huge")


def test_fewer_layers_cut_every_list_of_layers() -> None:
    config = preset_config("qwen4_exp", "published")
    text = text_part(config)
    text["layer_types"] = (["linear_attention"] * 3 + ["full_attention"]) * 12
    text["ple_layer_ids"] = [2, 30]
    set_layers(config, 6)
    assert text["num_hidden_layers"] == 6
    assert text["layer_types"] == ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 2
    assert text["ple_layer_ids"] == [2]
    set_layers(config, 9)
    assert text["layer_types"][6:] == ["linear_attention", "full_attention", "linear_attention"]


def test_fields_are_set_in_the_text_config() -> None:
    config = preset_config("qwen4_exp", "tiny")
    set_fields(
        config,
        [
            "hidden_size=96",
            "output_gate_type=silu",
            "rope_parameters.rope_theta=5e5",
            "ple_layer_ids=[]",
            "tie_word_embeddings=false",
            "num_hidden_layers=8",
        ],
    )
    text = text_part(config)
    assert (text["hidden_size"], text["output_gate_type"], text["ple_layer_ids"]) == (96, "silu", [])
    assert text["rope_parameters"]["rope_theta"] == 5e5
    assert config["tie_word_embeddings"] is text["tie_word_embeddings"] is False
    assert text["num_hidden_layers"] == 8


@pytest.mark.parametrize("wrong", ["hidden_size", "=3", "rope_parameter.rope_theta=1", "hidden_size.x=1"])
def test_assignments_that_mean_nothing_are_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="--set"):
        set_fields(preset_config("qwen4_exp", "tiny"), [wrong])


def test_block_fp8_publishes_experts_one_by_one() -> None:
    config = preset_config("qwen4_exp", "published")
    assert style_of("qwen4_exp", config, fp8_block=None).experts_are_packed
    assert style_of("qwen4_exp", config, fp8_block=None).ngram_shards == 512
    assert not style_of("qwen4_exp", config, fp8_block=(128, 128)).experts_are_packed
