"""Fields that every API shares: names, contradictions, and what is held against the model."""

import pytest

from strata.engine.request import TokenRequest
from strata.errors import RequestError
from strata.sampling.options import SamplingOptions
from strata.server.asking import (
    SamplingFields,
    as_api_error,
    check_token_ids,
    made_options,
    one_of,
    sampling_defaults,
    token_requests,
)
from strata.server.errors import ApiError
from strata.settings import Settings, resolve
from tests.server.fake_engine import facts


def test_unknown_fields_are_kept_and_ignored() -> None:
    body = SamplingFields.model_validate({"temperature": 0.5, "whatever": 1})
    assert body.other("whatever") == 1 and body.other("temperature") == 0.5 and body.other("nothing") is None
    assert body.options({}, 5, None).temperature == 0.5


def test_names_of_one_option_may_agree_and_not_differ() -> None:
    same = SamplingFields(repetition_penalty=1.1, repeat_penalty=1.1)
    assert one_of(same, "repetition_penalty", "repeat_penalty") == 1.1
    with pytest.raises(ApiError, match="one option"):
        one_of(SamplingFields(repetition_penalty=1.1, repeat_penalty=1.2), "repetition_penalty", "repeat_penalty")


def test_options_we_lack_are_refused_unless_they_change_nothing() -> None:
    SamplingFields.model_validate({"typical_p": 1.0, "mirostat": 0}).options({}, None, None)
    for field, value in (("mirostat", 2), ("thinking_token_budget", 100)):
        with pytest.raises(ApiError, match=f"{field} is {value}; this server has no such option"):
            SamplingFields.model_validate({field: value}).options({}, None, None)


def test_defaults_are_the_apis_then_the_models_then_the_servers() -> None:
    quiet = sampling_defaults({}, Settings())
    assert quiet == {"temperature": 1.0}
    recommended = {"temperature": 0.6, "top_k": 20}
    assert sampling_defaults(recommended, Settings()) == recommended
    told = resolve({"temperature": 0.0, "max_tokens": 99}, environment={"STRATA_TOP_P": "0.9"})
    assert sampling_defaults(recommended, told) == {"temperature": 0.0, "top_k": 20, "max_tokens": 99, "top_p": 0.9}


def test_a_request_wins_over_defaults_and_may_ask_for_as_many_as_fit() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "max_tokens": 99}
    options = SamplingFields(temperature=0.0).options(defaults, None, None)
    assert (options.temperature, options.top_k, options.max_tokens) == (0.0, 20, 99)
    assert SamplingFields().options(defaults, -1, None).max_tokens is None
    with pytest.raises(ApiError, match="max_tokens is -2"):
        SamplingFields().options(defaults, -2, None)


def test_the_field_of_an_engines_refusal_is_named() -> None:
    error = as_api_error(RequestError("top_p is 7; it must be a number from 0 to 1"))
    assert (error.status, error.param) == (400, "top_p")
    assert as_api_error(RequestError("something else")).param is None


def test_requests_are_numbered_and_end_where_the_model_does() -> None:
    model = facts()
    options = SamplingOptions(stop_token_ids=(9,))
    first, second = token_requests((5, 6), options, model, choices=2)
    assert (first.choice, second.choice) == (0, 1)
    assert first.stop_token_ids == model.end_of_text_ids | {9}
    on = token_requests((5, 6), SamplingOptions(stop_token_ids=(9,), ignore_eos=True), model)
    assert on == (TokenRequest((5, 6), SamplingOptions(stop_token_ids=(9,), ignore_eos=True), frozenset({9})),)


def test_a_prompt_must_leave_room_for_one_token() -> None:
    model = facts(context=10)
    assert token_requests((5,) * 9, SamplingOptions(), model)
    with pytest.raises(ApiError, match="10 tokens and this server's context 10") as refusal:
        token_requests((5,) * 10, SamplingOptions(), model)
    assert refusal.value.code == "context_length_exceeded"


def test_a_larger_context_is_only_advised_where_the_model_has_one() -> None:
    for context, advised in ((10, True), (65536, False)):
        with pytest.raises(ApiError) as refusal:
            token_requests((5,) * context, SamplingOptions(), facts(context=context), param="input")
        assert refusal.value.param == "input"
        assert ("--context" in refusal.value.message) is advised


def test_a_refused_top_p_says_that_0_does_not_work_either() -> None:
    for wrong in (-1, 0):
        with pytest.raises(ApiError, match=r"above 0 \(for the likeliest token use temperature 0\)"):
            made_options({}, {"top_p": wrong})


def test_token_ids_are_those_of_the_model() -> None:
    check_token_ids([0, 8191], 8192, "prompt")
    for wrong in (-1, 8192):
        with pytest.raises(ApiError, match=f"token id {wrong}; this model's ids are 0 to 8191"):
            check_token_ids([wrong], 8192, "prompt")
