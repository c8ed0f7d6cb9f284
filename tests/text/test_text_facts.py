"""What is said of a tokenizer and a template that work, that do not, and of end-of-text ids that no model can say."""

import pytest

from strata import models_shipped
from strata.errors import TextError
from strata.text.text_facts import end_ids_problem, read_text_facts
from strata.text.tokenizer import Tokenizer, load_tokenizer


def test_what_works_is_one_line_each() -> None:
    facts = read_text_facts(lambda: load_tokenizer(models_shipped.default_path()), (2,), 8192)
    assert facts.tokenizer == "loads, 8,192 tokens"
    assert facts.template.startswith("works, a first message of one word is ")
    assert facts.problems == ()


def test_what_does_not_load_gives_its_reason() -> None:
    def fail() -> Tokenizer:
        raise TextError("tokenizer.json is missing")

    facts = read_text_facts(fail, (), 8192)
    assert (facts.tokenizer, facts.template) == ("does not load", "not tried")
    assert facts.problems == ("tokenizer.json is missing",)


@pytest.mark.parametrize(("ids", "words"), [((2, 8192), "names 8,192,"), ((-1, 9000), "names -1, 9,000,")])
def test_ids_outside_the_vocabulary_are_named_with_what_works(ids: tuple[int, ...], words: str) -> None:
    said = end_ids_problem(ids, 8192)
    assert said is not None
    assert words in said
    assert "ids from 0 to 8,191" in said
    assert end_ids_problem((0, 8191), 8192) is None
