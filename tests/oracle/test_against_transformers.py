"""Every family's logits equal those of transformers in float64, on three random configs each; all 16: make oracle."""

import pytest
import torch

pytest.importorskip("transformers.models.qwen4_exp")

from strata.models.families import family_of
from tests.oracle import transformers_model
from tests.oracle.compare import compare, load, read_all
from tests.oracle.configs import FAMILIES, random_case
from tests.oracle.table import LIMIT_FLOAT32, LIMIT_FLOAT64


@pytest.mark.parametrize("seed", [0, 4, 11])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family: str, seed: int) -> None:
    result = compare(random_case(family, seed))
    assert result.max_diff_float64 <= LIMIT_FLOAT64
    assert result.max_diff_float32 <= LIMIT_FLOAT32
    assert result.logit_scale > 0.3  # logits of order 1, so that the limits mean something


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_tensors_of_the_same_shapes_are_expected(family: str, seed: int) -> None:
    case = random_case(family, seed)
    tensors = transformers_model.canonical_tensors(transformers_model.build(case), case)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor.is_floating_point()}
    assert family_of(case.config).expected_tensors(family_of(case.config).parse_config(case.config)) == shapes


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_reaches_the_logits(family: str) -> None:
    """A comparison proves nothing about a tensor that a random model makes no use of."""
    case = random_case(family, 0)
    tensors = transformers_model.canonical_tensors(transformers_model.build(case), case)
    text = case.token_ids[:80]
    expected = read_all(load(case, tensors, torch.float64), text)
    names = family_of(case.config).expected_tensors(family_of(case.config).parse_config(case.config))
    for name in names:
        changed = tensors | {name: 3.0 * tensors[name].flip(0)}  # much: an indexer shows only if it chooses otherwise
        moved = (read_all(load(case, changed, torch.float64), text) - expected).abs().max()
        assert moved > 1e3 * LIMIT_FLOAT64, name
