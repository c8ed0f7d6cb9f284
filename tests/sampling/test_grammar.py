"""A grammar rules out what may not come next, for every row of a window, and looking ahead changes nothing."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from strata.errors import EngineError
from strata.sampling.grammar import Grammar
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Sampler
from strata.sampling.token_mask import allows
from tests.sampling.grammars import (
    END,
    OTHER_END,
    THINK_END,
    TOOL,
    WIDTH,
    allowed_ids,
    compiled,
    factory,
    follow,
    next_texts,
    regex,
    vocabulary,
)  # fmt: skip

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": ["é", 12, True, "x y"]}, "maxItems": 3}, "b": {}},
    "required": ["a"],
}
GRAMMARS: dict[str, Callable[[], Grammar]] = {
    "schema": lambda: compiled(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "object": lambda: compiled(GrammarKind.JSON_OBJECT, ""),
    "regex": lambda: regex("(ab|[0-9]{2,4}é)*x?"),
    "lark": lambda: compiled(GrammarKind.LARK, f'start: <[{TOOL}]> a\na: "(" a ")" | /[a-c]+/ | '),
    "behind reasoning": lambda: regex("[0-9]{2,5}(ab)*", THINK_END),
}


def random_token(random: np.random.Generator, mask: np.ndarray) -> int:
    """An allowed one, not the end if there is another: walks that end at once show little."""
    ids = allowed_ids(mask)
    others = [token_id for token_id in ids if token_id not in (END, OTHER_END)]
    return int(random.choice(others or ids))


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_of_a_window_are_those_of_a_fresh_grammar_behind_each_row(name: str) -> None:
    random, walked = np.random.default_rng(len(name)), 0
    for walk in range(6):
        grammar, committed = GRAMMARS[name](), list[int]()
        while not grammar.is_finished and len(committed) < 25:
            drafts = []
            look = GRAMMARS[name]()
            look.commit(committed)
            for _ in range(int(random.integers(0, 5))):
                wanted = random_token(random, look.masks()[0])
                token_id = THINK_END if random.random() < 0.1 else wanted
                drafts.append(token_id if random.random() < 0.9 else int(random.integers(WIDTH)))
                if not follow(look, drafts[-1:]) or look.is_finished:
                    break
            if walk % 2:
                grammar.prepare(drafts)
            masks = grammar.masks(drafts)
            for row, mask in enumerate(masks):
                fresh = GRAMMARS[name]()
                fresh.commit(committed + drafts[:row])
                assert np.array_equal(mask, fresh.masks()[0]), (committed, drafts, row)
            assert np.array_equal(grammar.masks()[0], masks[0])
            reached = masks[: int(random.integers(1, len(masks) + 1))]
            taken = [*drafts[: len(reached) - 1], random_token(random, reached[-1])]
            grammar.commit(taken)
            committed += taken
        walked += len(committed)
    assert walked > 20


def logits_row(seed: int) -> torch.Tensor:
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) * 3


def reply_without_drafts(grammar: Grammar, options: SamplingOptions, most: int) -> list[int]:
    sampler, ids = Sampler(options, WIDTH, grammar=grammar), list[int]()
    while not sampler.is_finished and len(ids) < most:
        ids.append(sampler.sample(logits_row(len(ids)), len(ids)).token_id)
        sampler.commit(ids[-1:])
    return ids


OPTIONS = [
    SamplingOptions(),
    SamplingOptions(temperature=1.5, seed=3),
    SamplingOptions(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, frequency_penalty=1.0, seed=4),
    SamplingOptions(logit_bias={THINK_END: 4.0, 34: 2.0}, repetition_penalty=1.3),
]


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("options", OPTIONS)
def test_windows_with_drafts_give_the_reply_without_drafts(name: str, options: SamplingOptions) -> None:
    expected = reply_without_drafts(GRAMMARS[name](), options, 60)
    random = np.random.default_rng(1)
    sampler, ids = Sampler(options, WIDTH, grammar=GRAMMARS[name]()), list[int]()
    while not sampler.is_finished and len(ids) < 60:
        right = expected[len(ids) : len(ids) + int(random.integers(0, 5))][: 59 - len(ids)]
        drafts = [token if random.random() < 0.8 else int(random.integers(WIDTH)) for token in right]
        sampler.prepare(drafts)
        rows = torch.stack([logits_row(len(ids) + row) for row in range(len(drafts) + 1)])
        draws = [draw.token_id for draw in sampler.verify(rows, len(ids), drafts)]
        sampler.commit(draws)
        ids += draws
    assert ids == expected


def test_the_end_is_allowed_exactly_where_the_grammar_may_stop() -> None:
    grammar = regex("[0-9]{2,3}")
    for digit, may_end in (("1", False), ("2", True)):
        grammar.commit([ord(digit)])
        assert [allows(grammar.masks()[0], end) for end in (END, OTHER_END)] == [may_end, may_end]
        assert not grammar.is_finished
    grammar.commit([ord("3")])
    assert grammar.is_finished and allowed_ids(grammar.masks()[0]) == [END, OTHER_END]


def test_the_end_finishes_a_grammar_that_could_go_on() -> None:
    grammar = regex("a*")
    grammar.commit([97, OTHER_END])
    assert grammar.is_finished


def test_a_window_stops_at_the_draft_that_finishes_the_grammar() -> None:
    rows = torch.zeros(4, WIDTH)
    for row, token_id in enumerate((49, 50, END, END)):
        rows[row, token_id] = 9.0
    sampler = Sampler(SamplingOptions(), WIDTH, grammar=regex("[0-9]{2}"))
    assert [draw.token_id for draw in sampler.verify(rows, 0, [49, 50, END])] == [49, 50]
    assert not sampler.is_finished
    sampler.commit([49, 50])
    assert sampler.is_finished


def test_rows_behind_a_draft_that_cannot_be_are_left_out() -> None:
    grammar = regex("[0-9]{2,9}")
    assert len(grammar.masks([49, 65, 50])) == 2
    assert len(grammar.masks([49, 50, END, 51])) == 3
    assert len(grammar.masks([49, WIDTH + 5])) == 2
    assert len(grammar.masks([49, 50, 51])) == 4


def test_it_begins_behind_the_end_of_reasoning_inside_a_window() -> None:
    grammar = regex("[0-9]ab", THINK_END)
    drafts = [ord("x"), THINK_END, ord("7"), ord("a")]
    masks = grammar.masks(drafts)
    everything = [token_id for token_id in range(WIDTH) if token_id not in (END, OTHER_END)]
    assert [allowed_ids(mask) for mask in masks[:2]] == [everything, everything]
    first = {vocabulary().tokens[token_id] for token_id in allowed_ids(masks[2])}
    assert first == {bytes([digit]) for digit in b"0123456789"} | {b"\n", b"\n\n"}
    assert {vocabulary().tokens[token_id] for token_id in allowed_ids(masks[3])} == {b"a", b"ab"}
    assert allowed_ids(masks[4]) == [ord("b")]
    grammar.commit(drafts[:2])
    assert allowed_ids(grammar.masks()[0]) == allowed_ids(masks[2])
    grammar.commit([*drafts[2:], ord("b")])
    assert grammar.is_finished


def test_up_to_two_line_ends_may_stand_between_reasoning_and_text() -> None:
    line_ends = vocabulary().tokens.index(b"\n\n")
    assert follow(regex("ab", THINK_END), [THINK_END, line_ends, 97])
    assert follow(regex("ab", THINK_END), [THINK_END, 10, 97])
    assert not follow(regex("ab", THINK_END), [THINK_END, line_ends, 10])
    assert follow(regex("\nab", THINK_END), [THINK_END, 10, 97, 98])
    assert not follow(regex("ab"), [10])


def test_a_reply_cannot_end_in_its_reasoning_unless_it_may_be_empty() -> None:
    assert not allows(regex("ab", THINK_END).masks()[0], END)
    grammar = regex("(ab)?", THINK_END)
    assert allows(grammar.masks()[0], END)
    grammar.commit([120, END])
    assert grammar.is_finished


@pytest.mark.parametrize("kind", [GrammarKind.JSON_SCHEMA, GrammarKind.REGEX])
def test_reasoning_may_come_first_and_the_grammar_holds_with_and_without_it(kind: GrammarKind) -> None:
    source = {GrammarKind.JSON_SCHEMA: '{"enum": [12]}', GrammarKind.REGEX: "12"}[kind]

    def fresh() -> Grammar:
        return factory().compile(GrammarSpec(kind, source, reasoning=(TOOL, THINK_END)))

    assert follow(fresh(), b"12") and not follow(fresh(), b"13") and not follow(fresh(), b"\n12")
    thought = [TOOL, *b"no 13?\n", THINK_END]
    assert follow(fresh(), [*thought, *b"\n\n12"]) and not follow(fresh(), [*thought, *b"13"])
    assert not follow(fresh(), [*thought, *b"\n\n\n12"]) and not follow(fresh(), [*thought, TOOL])
    assert not follow(fresh(), [*b"1", TOOL]) and not follow(fresh(), [*thought[:-1], END])
    whole = fresh()
    assert follow(whole, [*thought, *b"12"]) and (whole.is_finished or allows(whole.masks()[0], END))


def test_control_tokens_are_no_text_and_come_where_they_are_named() -> None:
    tool = compiled(GrammarKind.LARK, f'start: "</think>" <[{TOOL}]> /.+/')
    assert next_texts(tool) == {b"<"}
    assert follow(tool, b"</think>")
    assert allowed_ids(tool.masks()[0]) == [TOOL]
    tool.commit([TOOL])
    assert not {THINK_END, TOOL, END} & set(allowed_ids(tool.masks()[0]))


def test_tokens_with_the_same_bytes_are_all_allowed_and_padding_never() -> None:
    ids = allowed_ids(regex("ab|x").masks()[0])
    assert ids == [97, 120, *(i for i, token in enumerate(vocabulary().tokens) if token == b"ab")]
    assert max(allowed_ids(regex("(.|\n)*").masks()[0])) <= OTHER_END


def test_what_was_not_allowed_cannot_become_part_of_the_reply() -> None:
    grammar = regex("ab")
    with pytest.raises(EngineError, match="token id 120 does not follow the grammar"):
        grammar.commit([97, 120])


def test_logprobs_are_of_the_models_own_distribution() -> None:
    row = logits_row(0)
    draw = Sampler(SamplingOptions(logprobs=1), WIDTH, grammar=regex("[0-9]")).sample(row, 0)
    assert 48 <= draw.token_id <= 57
    assert draw.logprob == pytest.approx(float(torch.log_softmax(row.double(), dim=-1)[draw.token_id]))
    assert draw.top_logprobs[0].token_id == int(row.argmax())


def test_a_row_that_has_only_what_is_ruled_out_fails() -> None:
    row = torch.full((WIDTH,), float("-inf"))
    row[65] = 1.0
    with pytest.raises(EngineError, match="no token is allowed at position 4"):
        Sampler(SamplingOptions(), WIDTH, grammar=regex("[0-9]")).sample(row, 4)
