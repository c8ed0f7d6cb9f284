"""One text gives one answer in every plain decoder, however it is cut, windowed, committed or beside other slots."""

import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from strata.errors import RequestError, WeightFileError
from strata.models.base import LogitRows, Segment
from strata.models.families import family_of
from strata.weights.source import MemorySource
from tests.oracle.configs import random_case
from tests.random_text import text_of

FAMILIES = ("qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")
TOLERANCE = 1e-4
NUM_ROWS = 150


def random_tensors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Random weights of a config with logits of order 1."""
    family = family_of(config)
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for name, shape in family.expected_tensors(family.parse_config(config)).items():
        normal = torch.randn(shape, generator=generator)
        tensors[name] = normal * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)
    return tensors


# Sizes like those of published models, only smaller: every width a multiple of 32. Bits are promised for such; where
# a width is odd, torch rounds a tensor's last few values differently from the rest.
EVEN_SIZES = {
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "eos_token_id": 1,
}
EVEN_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3}
EVEN_MIXED_SIZES = {
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 32,
    "full_attention_interval": None,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}


def even_config(family: str) -> dict[str, Any]:
    config = dict(random_case(family, 5).text_config) | EVEN_SIZES
    if family == "llama":
        return config | {"intermediate_size": 96}
    return config | EVEN_EXPERTS | (EVEN_MIXED_SIZES if family != "qwen3_moe" else {})


def load(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    family = family_of(config)
    return family.load(family.parse_config(config), MemorySource(tensors), torch.float32)


@cache
def model_of(family: str) -> Any:
    config = even_config(family)
    return load(config, random_tensors(config))


@cache
def odd_model_of(family: str) -> Any:
    config = random_case(family, 5).config
    return load(config, random_tensors(config))


def read_in_pieces(model: Any, text: torch.Tensor, cuts: list[int]) -> tuple[torch.Tensor, Any]:
    """All logits of a text that is read in pieces cut at `cuts`, and the state after it."""
    state = model.new_state()
    bounds = [0, *cuts, len(text)]
    logits = [model.read([Segment(state, text[start:stop])], LogitRows.ALL).logits for start, stop in pairwise(bounds)]
    return torch.cat(logits), state


@pytest.mark.parametrize("family", FAMILIES)
def test_cuts_at_multiples_of_64_give_the_same_bits(family: str) -> None:
    model, text = model_of(family), text_of(NUM_ROWS)
    whole, whole_state = read_in_pieces(model, text, [])
    pieces, pieces_state = read_in_pieces(model, text, [64, 128])
    assert torch.equal(whole, pieces)
    following = text_of(3, seed=1)
    after = [model.window([Segment(state, following)]).output.logits for state in (whole_state, pieces_state)]
    assert torch.equal(*after)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("make_model", [model_of, odd_model_of])
def test_cuts_anywhere_agree_within_rounding(family: str, make_model: Callable[[str], Any]) -> None:
    model, text = make_model(family), text_of(NUM_ROWS)
    whole, _ = read_in_pieces(model, text, [])
    for seed in range(3):
        cuts = sorted(random.Random(seed).sample(range(1, NUM_ROWS), 6))
        pieces, state = read_in_pieces(model, text, cuts)
        assert (whole - pieces).abs().max() <= TOLERANCE
        assert state.position == NUM_ROWS
    one_by_one, _ = read_in_pieces(model, text, list(range(1, 70)))  # beyond a chunk's end
    assert (whole - one_by_one).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("make_model", [model_of, odd_model_of])
def test_windows_with_random_acceptance_agree_with_a_read(family: str, make_model: Callable[[str], Any]) -> None:
    model, text = make_model(family), text_of(NUM_ROWS)
    whole, _ = read_in_pieces(model, text, [])
    rng = random.Random(3)
    state = model.new_state()
    start = 70
    model.read([Segment(state, text[:start])])
    while start < NUM_ROWS:
        num_rows = min(rng.randrange(1, 6), NUM_ROWS - start)
        good = rng.randrange(0, num_rows + 1)
        rows = text[start : start + num_rows].clone()
        rows[good:] = (rows[good:] + 1) % model.vocabulary_size  # drafts that will be rejected
        window = model.window([Segment(state, rows)])
        if good:
            assert (window.output.logits[:good] - whole[start : start + good]).abs().max() <= TOLERANCE
        model.commit(window, [good])
        start += good
        assert state.position == start


@pytest.mark.parametrize("family", FAMILIES)
def test_a_window_changes_no_state_and_rows_do_not_depend_on_their_number(family: str) -> None:
    model, text = model_of(family), text_of(NUM_ROWS)
    _, state = read_in_pieces(model, text[:70], [])
    four = model.window([Segment(state, text[70:74])])
    again = model.window([Segment(state, text[70:74])])
    one = model.window([Segment(state, text[70:71])])
    assert state.position == 70
    assert torch.equal(four.output.logits, again.output.logits)
    assert torch.equal(four.output.logits[:1], one.output.logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_commit_row_by_row_and_at_once_leave_the_same_bits(family: str) -> None:
    model, text = model_of(family), text_of(NUM_ROWS)
    _, at_once = read_in_pieces(model, text[:70], [])
    row_by_row = at_once.clone()
    model.commit(model.window([Segment(at_once, text[70:75])]), [3])
    for row in range(70, 73):
        model.commit(model.window([Segment(row_by_row, text[row : row + 1])]), [1])
    after = [model.window([Segment(state, text[73:75])]).output.logits for state in (at_once, row_by_row)]
    assert torch.equal(*after)


@pytest.mark.parametrize("family", FAMILIES)
def test_slots_that_share_a_call_get_the_bits_they_get_alone(family: str) -> None:
    model = model_of(family)
    texts = [text_of(num_rows, seed) for seed, num_rows in ((1, 90), (2, 7), (3, 65))]
    alone_states = [model.new_state() for _ in texts]
    alone = [model.read([Segment(s, t)], LogitRows.ALL).logits for s, t in zip(alone_states, texts, strict=True)]
    shared_states = [model.new_state() for _ in texts]
    segments = [Segment(s, t) for s, t in zip(shared_states, texts, strict=True)]
    assert torch.equal(model.read(segments, LogitRows.ALL).logits, torch.cat(alone))

    drafts = [text_of(index + 1, 10 + index) for index in range(3)]
    windows = [model.window([Segment(s, d)]) for s, d in zip(alone_states, drafts, strict=True)]
    shared = model.window([Segment(s, d) for s, d in zip(shared_states, drafts, strict=True)])
    assert torch.equal(shared.output.logits, torch.cat([window.output.logits for window in windows]))
    model.commit(shared, [1, 0, 2])
    assert [state.position for state in shared_states] == [91, 7, 67]


@pytest.mark.parametrize("family", FAMILIES)
def test_logit_rows_choose_what_the_head_computes(family: str) -> None:
    model, text = model_of(family), text_of(NUM_ROWS)
    everything = model.read([Segment(model.new_state(), text)], LogitRows.ALL)
    last = model.read([Segment(model.new_state(), text)], LogitRows.LAST)
    nothing = model.read([Segment(model.new_state(), text)], LogitRows.NONE)
    assert (last.logits - everything.logits[-1:]).abs().max() <= 1e-5
    assert nothing.logits.shape == (0, model.vocabulary_size)
    assert torch.equal(everything.hidden, nothing.hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clone_is_independent(family: str) -> None:
    model, text = model_of(family), text_of(NUM_ROWS)
    _, state = read_in_pieces(model, text[:70], [])
    before = model.window([Segment(state, text[70:72])]).output.logits
    copy = state.clone()
    model.read([Segment(copy, text[70:120])])
    assert (state.position, copy.position) == (70, 120)
    assert copy.bytes_used() >= state.bytes_used() > 0
    assert torch.equal(model.window([Segment(state, text[70:72])]).output.logits, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_rows_than_the_context_are_refused_with_both_numbers(family: str) -> None:
    model = model_of(family)
    with pytest.raises(RequestError, match=rf"{model.max_position + 1}.*{model.max_position}"):
        model.read([Segment(model.new_state(), text_of(model.max_position + 1))])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_of_the_wrong_shape_is_named(family: str) -> None:
    config = even_config(family)
    tensors = random_tensors(config)
    name = f"model.layers.1.{'input_layernorm' if family == 'llama' else 'self_attn.q_norm'}.weight"
    tensors[name] = tensors[name][:-1]
    with pytest.raises(WeightFileError, match=rf"{name}.*\[{len(tensors[name])}\].*\[{len(tensors[name]) + 1}\]"):
        load(config, tensors)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_tensor_is_named(family: str) -> None:
    config = even_config(family)
    tensors = random_tensors(config)
    del tensors["model.norm.weight"]
    with pytest.raises(WeightFileError, match=r"model\.norm\.weight"):
        load(config, tensors)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_routing_is_observed_in_every_sparse_layer(family: str) -> None:
    model = odd_model_of(family)
    seen: list[tuple[int, torch.Size]] = []
    model.observe_routing(lambda layer, expert_ids: seen.append((layer, expert_ids.shape)))
    model.window([Segment(model.new_state(), text_of(3))])
    model.observe_routing(None)
    model.window([Segment(model.new_state(), text_of(3))])
    mlp = model.config.mlp
    wanted = torch.Size((3, mlp.moe.experts_per_token))
    assert seen == [(layer, wanted) for layer, is_sparse in enumerate(mlp.layer_is_sparse) if is_sparse]
