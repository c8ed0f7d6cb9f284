"""From the fields that every API shares to sampling options and stop tokens.

Knows names and ranges of request fields; nothing of a single API, no prompt.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from strata.engine.messages import ModelFacts
from strata.engine.request import TokenRequest
from strata.errors import RequestError
from strata.sampling.grammar_spec import GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.server.context_limit import ContextLimit
from strata.server.errors import ApiError
from strata.settings import Settings

MOST_CHOICES = 128  # as the OpenAI API

_CALLED_ALIKE: Mapping[str, str] = {}

# Options of other servers that change a reply and that we do not have: with these values they change nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1, 0),
    "typ_p": (1, 0),
    "mirostat": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "top_n_sigma": (-1, 0),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "thinking_token_budget": (-1,),
}


class Fields(BaseModel):
    """A request's body: unknown fields are kept and ignored."""

    model_config = ConfigDict(extra="allow")

    def other(self, name: str) -> Any:
        """A field, whether the model of the body declares it or not; None if it is absent."""
        return getattr(self, name) if name in type(self).model_fields else (self.model_extra or {}).get(name)


class SamplingFields(Fields):
    """What the OpenAI APIs and local servers call the options of sampling."""

    called: ClassVar[Mapping[str, str]] = {}  # options that an API calls by another name

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None

    def options(self, defaults: Mapping[str, Any], max_tokens: int | None, logprobs: int | None) -> SamplingOptions:
        """As the engine takes them. ApiError 400 names the field.

        defaults: of options that the request does not name. max_tokens: -1 as many as fit, None not named.
        """
        refuse_what_we_lack(self)
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": one_of(self, "repetition_penalty", "repeat_penalty"),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": _bias(self.logit_bias),
            "seed": self.seed,
            "stop": tuple(stop_strings(self.stop)),
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
        }
        return made_options(defaults, values, self.called)


def sampling_defaults(recommended: Mapping[str, float], settings: Settings) -> dict[str, Any]:
    """Options of a request that says nothing: the API's, then the model's own, then what this server was told."""
    told = {name: value for name, value in vars(settings.generation).items() if name in settings.said}
    return {"temperature": 1.0} | dict(recommended) | told


def made_options(
    defaults: Mapping[str, Any], values: Mapping[str, Any], called: Mapping[str, str] = _CALLED_ALIKE
) -> SamplingOptions:
    """Options with these values where they are not None, the defaults elsewhere, and a seed.

    called: how the API calls options that have another name there; a refusal says that name.
    """
    named = {name: value for name, value in values.items() if value is not None}
    if named.get("max_tokens") == -1:
        named["max_tokens"] = None  # as many as fit, whatever the default
    try:
        return SamplingOptions(**{**defaults, **named}).seeded()
    except RequestError as error:
        raise as_api_error(error, called) from error


def as_api_error(error: RequestError, called: Mapping[str, str] = _CALLED_ALIKE) -> ApiError:
    """A refusal of the engine's side as a client hears it; `param` is the field that the sentence begins with."""
    name = str(error).split(" ", 1)[0].rstrip(":")
    is_field = name == "tools" or any(name == field.name for field in dataclasses.fields(SamplingOptions))
    told = called.get(name, name)
    return ApiError(400, told + str(error).removeprefix(name), param=told if is_field else None)


def refuse_what_we_lack(body: Fields) -> None:
    """ApiError 400 for an option that would change the reply and that no part of this server knows."""
    for name, neutral in _NEUTRAL.items():
        value = body.other(name)
        if value is not None and value not in neutral:
            raise ApiError(400, f"{name} is {value!r}; this server has no such option: leave it out", param=name)


def one_of(body: Fields, *names: str) -> Any:
    """The value of a field that has several names. ApiError 400 if two of them are given and differ."""
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    values = list(given.values())
    if any(value != values[0] for value in values):
        listed = ", ".join(f"{name} = {value!r}" for name, value in given.items())
        raise ApiError(400, f"{listed}: these are one option, give one of them", param=next(iter(given)))
    return values[0] if values else None


def stop_strings(stop: str | list[str] | None) -> list[str]:
    """A field that takes one string or several."""
    return [] if stop is None else [stop] if isinstance(stop, str) else stop


def token_requests(
    prompt: tuple[int, ...],
    options: SamplingOptions,
    facts: ModelFacts,
    choices: int = 1,
    grammar: GrammarSpec | None = None,
    prompt_logprobs: int | None = None,
    param: str = "messages",
    boundaries: tuple[int, ...] = (),
) -> tuple[TokenRequest, ...]:
    """One request for each reply that is wanted, held against the model. ApiError 400 where it cannot be served.

    param: the field that the prompt comes from; boundaries: where its turns begin, if that is known.
    """
    if not 1 <= choices <= MOST_CHOICES:
        raise ApiError(400, f"n is {choices}; it must be from 1 to {MOST_CHOICES}", param="n")
    if not prompt:
        raise ApiError(400, "the prompt is empty: give at least one token", param=param)
    ContextLimit(facts.context, facts.trained_context).check(len(prompt), param)
    try:
        options.check_vocabulary(facts.vocabulary_size)
    except RequestError as error:
        raise as_api_error(error) from error
    ends = frozenset() if options.ignore_eos else facts.end_of_text_ids
    stops = ends | frozenset(options.stop_token_ids)
    asked = TokenRequest(prompt, options, stops, 0, grammar, prompt_logprobs, boundaries)
    return tuple(dataclasses.replace(asked, choice=choice) for choice in range(choices))


def check_token_ids(token_ids: Sequence[int], vocabulary_size: int, param: str) -> None:
    """ApiError 400 for a token id that the model does not have."""
    wrong = next((token_id for token_id in token_ids if not 0 <= token_id < vocabulary_size), None)
    if wrong is not None:
        last = vocabulary_size - 1
        raise ApiError(400, f"{param} holds token id {wrong}; this model's ids are 0 to {last}", param=param)


def _bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    wrong = next((name for name in bias if not name.isdecimal() or len(name) > 10), None)
    if wrong is not None:
        raise ApiError(400, f"logit_bias names {wrong[:50]!r}; its keys are token ids", param="logit_bias")
    return {int(name): value for name, value in bias.items()}
