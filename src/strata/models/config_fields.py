"""Typed reading of config.json: every error names the field, its value and what works.

Knows which fields change nothing in inference; knows no family: each family says what it reads and what it supports.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from strata.errors import ConfigError

_ANYTHING = object()
MOST_LAYERS = 10_000  # a number beyond all models is a damaged file, and a list of so many layers takes all memory

# Fields that config.json may hold and that do not change a logit: training, bookkeeping, generation defaults.
# fmt: off
_INERT_FIELDS = frozenset({
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "eos_token_id", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id",
    "length_penalty", "mamba_ssm_dtype", "max_length", "max_window_layers", "min_length", "model_type",
    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "num_beams", "num_return_sequences",
    "number_of_conv_states", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "problem_type", "quantization_config", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version",
    "typical_p", "use_bfloat16", "use_cache",
})
# fmt: on


@dataclass(frozen=True)
class RotaryFields:
    """Plain rotary embedding: its base and how many of a head's values it turns."""

    theta: float
    rotary_dim: int


class ConfigFields:
    """Reads one mapping of config.json field by field and remembers what was read."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where} must be a JSON object, not {type(values).__name__}")
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """True if the field is present and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str, default: Any = _ANYTHING) -> Any:
        """The field as it is; `default` if it is absent or null; ConfigError if there is no default."""
        self._read.add(name)
        value = self._values.get(name)
        if value is not None:
            return value
        if default is _ANYTHING:
            raise ConfigError(f"{self._where} has no field {name}; this model family needs it")
        return default

    def integer(self, name: str, default: Any = _ANYTHING, minimum: int = 1, maximum: int | None = None) -> int:
        """A whole number >= minimum, and <= maximum if there is one."""
        value = self.raw(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(name, value, f"a whole number >= {minimum} works")
        if value < minimum:
            raise self.refusal(name, value, f"it must be >= {minimum}")
        if maximum is not None and value > maximum:
            raise self.refusal(name, value, f"it must be <= {maximum}")
        return value

    def number(self, name: str, default: Any = _ANYTHING) -> float:
        """A positive finite number."""
        value = self.raw(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            raise self.refusal(name, value, "a positive number works")
        return float(value)

    def flag(self, name: str, default: Any = _ANYTHING) -> bool:
        """true or false."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, value, "true or false works")
        return value

    def integers(self, name: str, default: Any = _ANYTHING) -> tuple[int, ...]:
        """A list of whole numbers >= 0."""
        value = self.raw(name, default)
        if not isinstance(value, list | tuple) or any(
            isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value
        ):
            raise self.refusal(name, value, "a list of whole numbers >= 0 works")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A JSON object; an empty one if the field is absent or null."""
        value = self.raw(name, {})
        if not isinstance(value, Mapping):
            raise self.refusal(name, value, "a JSON object works")
        return value

    def only(self, name: str, allowed: Collection[Any], default: Any = _ANYTHING) -> Any:
        """The field if its value is one of `allowed`; anything else is refused with the list of what is supported."""
        value = self.raw(name, default)
        for candidate in allowed:
            if value == candidate and isinstance(value, bool) == isinstance(candidate, bool):
                return value
        raise self.refusal(name, value, f"supported: {', '.join(json_word(item) for item in allowed)}")

    def ignore(self, *names: str) -> None:
        """Say that these fields are known and change nothing here."""
        self._read.update(names)

    def refusal(self, name: str, value: Any, what_works: str) -> ConfigError:
        """The error for a field whose value cannot be used."""
        return ConfigError(f"{self._where}: {name} = {json_word(value)} is not supported; {what_works}")

    def refuse_unknown(self) -> None:
        """Refuse fields that nobody read, that are set, and that could change what the model computes."""
        for name, value in self._values.items():
            if name in self._read or name in _INERT_FIELDS or value is None or value in (False, [], {}):
                continue
            raise ConfigError(
                f"{self._where}: field {name} = {json_word(value)} is not known to this model family and could change "
                "its answers; remove the field if it does not matter"
            )


def json_word(value: Any) -> str:
    """A value as config.json writes it, cut to a readable length."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def require_divisible(fields: ConfigFields, name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Refuse two fields that contradict each other because one does not divide the other."""
    if value % divisor != 0:
        raise fields.refusal(name, value, f"it must be a multiple of {divisor_name} = {divisor}")


def read_layer_types(fields: ConfigFields, num_layers: int, full_names: Collection[str]) -> tuple[bool, ...]:
    """For every layer True if it is a full-attention layer, False if it is a delta-net layer.

    From `layer_types` (a type that is neither is refused by name) or `full_attention_interval`; both must agree.
    """
    interval = fields.integer("full_attention_interval", 4)
    by_interval = tuple((index + 1) % interval == 0 for index in range(num_layers))
    types = fields.raw("layer_types", None)
    if types is None:
        return by_interval
    if not isinstance(types, list | tuple) or len(types) != num_layers:
        raise fields.refusal("layer_types", types, f"it must list num_hidden_layers = {num_layers} names")
    for name in types:
        if name != "linear_attention" and name not in full_names:
            raise fields.refusal("layer_types", name, f"supported: linear_attention, {', '.join(sorted(full_names))}")
    is_full = tuple(name in full_names for name in types)
    if fields.has("full_attention_interval") and is_full != by_interval:
        raise fields.refusal("full_attention_interval", interval, "it contradicts layer_types; remove one of them")
    return is_full


def read_rotary(fields: ConfigFields, head_dim: int, default_factor: float) -> RotaryFields:
    """Plain rotary embedding from `rope_parameters` (or the older `rope_theta`, `partial_rotary_factor`).

    Rope scaling is refused by name. The sections of multimodal rope do not matter for text: its three positions
    are equal there.
    """
    parameters = {**fields.mapping("rope_scaling"), **fields.mapping("rope_parameters")}
    rope = ConfigFields(parameters, "config.json rope_parameters")
    for name in ("rope_type", "type"):
        rope.only(name, ("default",), "default")
    rope.ignore("mrope_section", "mrope_interleaved")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    factor = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", default_factor))
    rope.refuse_unknown()
    rotary_dim = int(head_dim * min(factor, 1.0))
    if factor > 1.0 or rotary_dim < 2 or rotary_dim % 2 != 0:
        raise rope.refusal(
            "partial_rotary_factor", factor, f"head_dim = {head_dim} times it must be an even number from 2 to head_dim"
        )
    return RotaryFields(theta, rotary_dim)


def read_end_of_text_ids(fields: ConfigFields) -> tuple[int, ...]:
    """`eos_token_id` as a tuple: one id, several, or none; all of them in the vocabulary."""
    value, vocabulary_size = fields.raw("eos_token_id", ()), fields.integer("vocab_size")
    ids = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(ids, list | tuple) or any(isinstance(item, bool) or not isinstance(item, int) for item in ids):
        raise fields.refusal("eos_token_id", value, "a token id or a list of token ids works")
    if any(not 0 <= item < vocabulary_size for item in ids):
        raise fields.refusal("eos_token_id", value, f"token ids are 0 to vocab_size - 1 = {vocabulary_size - 1}")
    return tuple(ids)


def text_fields(values: Mapping[str, Any], outer_type: str) -> ConfigFields:
    """The text part of a config: `text_config` inside `outer_type`, or the whole config of a text-only model.

    `tie_word_embeddings` stands outside, inside or in both places; two places that differ are refused.
    """
    outer = ConfigFields(values)
    if values.get("model_type") != outer_type:
        return outer
    if not outer.has("text_config"):
        raise ConfigError(f"config.json has no field text_config; model_type {outer_type} needs it")
    inner = dict(outer.mapping("text_config"))
    tied = values.get("tie_word_embeddings")
    if tied is not None and inner.setdefault("tie_word_embeddings", tied) != tied:
        raise ConfigError(
            f"config.json: tie_word_embeddings = {json_word(tied)} contradicts text_config's "
            f"{json_word(inner['tie_word_embeddings'])}; both must be what the weights have"
        )
    return ConfigFields(inner, "config.json text_config")
