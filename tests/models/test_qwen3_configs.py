"""What config.json may say: unknown families, unsupported and contradictory fields are refused by name."""

from typing import Any

import pytest

from strata.errors import ConfigError
from strata.models.families import FAMILIES, family_of, supported_model_types
from tests.oracle.configs import random_case

FAMILY_NAMES = [family.name for family in FAMILIES if family.name != "llama"]  # test_llama has its own
MIXED_FAMILIES = [name for name in FAMILY_NAMES if name != "qwen3_moe"]


def parse(config: dict[str, Any]) -> Any:
    return family_of(config).parse_config(config)


def text_config(family: str, **changes: Any) -> dict[str, Any]:
    """A text-only config that works, with fields changed; a field changed to None counts as absent."""
    return dict(random_case(family, 0).text_config) | changes


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_random_configs_are_accepted(family: str) -> None:
    for seed in range(30):
        parse(random_case(family, seed).config)


def test_unknown_model_type_lists_the_supported_ones() -> None:
    with pytest.raises(ConfigError, match="model_type = 'llama9'") as error:
        family_of({"model_type": "llama9"})
    assert all(name in str(error.value) for name in supported_model_types())


def test_missing_model_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="no field model_type"):
        family_of({"hidden_size": 8})


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("hidden_size", 0),
        ("hidden_size", "wide"),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 10**12),
        ("rms_norm_eps", -1e-6),
        ("tie_word_embeddings", 1),
        ("num_key_value_heads", 7),
        ("num_experts_per_tok", 1000),
        ("eos_token_id", "end"),
        ("eos_token_id", 100_000),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 1e308}),
        ("some_new_trick", 3),
    ],
)
def test_unsupported_value_is_refused_by_name(family: str, field: str, value: Any) -> None:
    config = text_config(family, num_attention_heads=4, num_key_value_heads=2)
    named = {"num_key_value_heads": "num_attention_heads", "rope_parameters": "rope_type|partial_rotary_factor"}
    with pytest.raises(ConfigError, match=named.get(field, field)):
        parse(config | {field: value})


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_experts", "moe_intermediate_size"])
def test_missing_field_is_named(family: str, field: str) -> None:
    with pytest.raises(ConfigError, match=f"no field {field}"):
        parse(text_config(family, **{field: None}))


@pytest.mark.parametrize("family", MIXED_FAMILIES)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"linear_num_key_heads": 2, "linear_num_value_heads": 5}, "linear_num_value_heads = 5"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"]}, "layer_types"),
        ({"num_hidden_layers": 2, "layer_types": ["linear_attention", "sliding_attention"]}, "sliding_attention"),
        ({"head_dim": 6, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
    ],
)
def test_contradictory_fields_are_refused_by_name(family: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(text_config(family, **changes))


@pytest.mark.parametrize("family", MIXED_FAMILIES)
def test_layer_types_and_interval_must_agree(family: str) -> None:
    types = ["linear_attention", "full_attention"] * 2
    config = text_config(family, num_hidden_layers=4, layer_types=types)
    parse(config | {"full_attention_interval": 2})
    with pytest.raises(ConfigError, match="full_attention_interval = 4"):
        parse(config | {"full_attention_interval": 4})


def test_a_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="JSON object, not list"):
        family_of([])  # type: ignore[arg-type]


def test_sliding_window_is_refused_only_when_used() -> None:
    parse(text_config("qwen3_moe", sliding_window=4096, use_sliding_window=False))
    with pytest.raises(ConfigError, match="use_sliding_window = true"):
        parse(text_config("qwen3_moe", sliding_window=4096, use_sliding_window=True))


def test_dense_layers_need_their_width_and_must_exist() -> None:
    with pytest.raises(ConfigError, match="no field intermediate_size"):
        parse(text_config("qwen3_moe", decoder_sparse_step=2, intermediate_size=None))
    with pytest.raises(ConfigError, match="mlp_only_layers"):
        parse(text_config("qwen3_moe", mlp_only_layers=[99]))


def test_number_of_experts_under_two_names_must_agree() -> None:
    config = text_config("qwen3_moe", num_experts=8, num_experts_per_tok=2)
    assert parse(config | {"num_experts": None, "num_local_experts": 8}).mlp.moe.experts == 8
    with pytest.raises(ConfigError, match="num_experts = 8"):
        parse(config | {"num_local_experts": 16})


def test_tied_embeddings_inside_and_outside_must_agree() -> None:
    text = text_config("qwen3_5_moe", tie_word_embeddings=True)
    nested = {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {"depth": 2}}
    assert parse(nested).ties_embeddings
    with pytest.raises(ConfigError, match="tie_word_embeddings = false contradicts"):
        parse(nested | {"tie_word_embeddings": False})


def test_nested_family_needs_its_text_config() -> None:
    with pytest.raises(ConfigError, match="text_config"):
        parse({"model_type": "qwen3_5_moe"})


def test_older_field_names_of_the_rotary_embedding_mean_the_same() -> None:
    newer = text_config("qwen3_next", rope_parameters={"rope_theta": 1e7, "partial_rotary_factor": 0.25}, head_dim=16)
    older = newer | {"rope_parameters": None, "rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_scaling": None}
    assert parse(newer) == parse(older)
