"""Which sampling a model's makers recommend, as its files say it.

Knows the fields of generation_config.json and of GGUF; not who is asked for what.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.errors import ModelError, RequestError
from strata.sampling.options import SamplingOptions
from strata.weights.gguf_source import GgufSource
from strata.weights.json_files import load_json_object
from strata.weights.opening import ModelSource

_FILE = "generation_config.json"
_KEY_OF = {  # the option, and its key in a GGUF file
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def recommended_sampling_of(source: ModelSource) -> tuple[dict[str, float], tuple[str, ...]]:
    """Options by name, and a sentence about each that does not work and is left out.

    Raises ModelError if there is a generation_config.json that is no JSON object.
    """
    if isinstance(source, GgufSource):
        metadata = source.model.metadata
        return _checked({name: metadata.get(key) for name, key in _KEY_OF.items()}, "the GGUF file")
    path = Path(source.directory) / _FILE
    return recommended_in(load_json_object(path, ModelError) if path.exists() else {})


def recommended_in(fields: Mapping[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The same from the fields of a generation_config.json; one that says not to sample recommends nothing."""
    is_sampling = fields.get("do_sample") is not False
    return _checked({name: fields.get(name) for name in _KEY_OF} if is_sampling else {}, _FILE)


def _checked(values: Mapping[str, Any], where: str) -> tuple[dict[str, float], tuple[str, ...]]:
    good: dict[str, float] = {}
    notices: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        try:
            SamplingOptions(**{name: value})
        except RequestError as mistake:
            notices.append(f"the sampling that {where} recommends is used without {name}: {mistake}")
        else:
            good[name] = value
    return good, tuple(notices)
