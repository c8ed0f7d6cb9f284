"""A GPU chooses for requests whose choices are functions of the row, the seed and the position alone."""

import math
from typing import Any

import pytest

from strata.kernels.sampler.slots import ChoiceOptions
from strata.sampling.on_device import device_options, samples_on_device
from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Sampler


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "seed": 3}, {"max_tokens": 5, "stop": "x"}],
)
def test_what_looks_at_the_row_alone_is_chosen_on_the_device(fields: dict[str, Any]) -> None:
    assert samples_on_device(SamplingOptions(**fields), has_grammar=False)
    assert not samples_on_device(SamplingOptions(**fields), has_grammar=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"logit_bias": {3: 1.0}},
        {"min_tokens": 2},
        {"logprobs": 0},
    ],
)
def test_what_needs_more_is_chosen_on_the_host(fields: dict[str, Any]) -> None:
    assert not samples_on_device(SamplingOptions(**fields), has_grammar=False)
    assert Sampler(SamplingOptions(**fields), 10).device_options is None


def test_options_as_the_device_reads_them() -> None:
    options = SamplingOptions(temperature=0.25, top_k=-1, top_p=0.9, min_p=0.5, seed=-1)
    assert device_options(options, 2) == ChoiceOptions(4.0, 0, 0.9, math.log(0.5), -1, 2)
    assert Sampler(options, 10, choice=2).device_options == device_options(options, 2)
    assert device_options(SamplingOptions(top_k=5, top_p=0.5), 1) == ChoiceOptions()  # greedy
    with pytest.raises(ValueError, match="seeded"):
        device_options(SamplingOptions(temperature=1.0), 0)
