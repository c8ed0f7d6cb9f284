"""A model's markers are known by tokens or template; a prompt ends in reasoning where the template opened it."""

import pytest

from strata import models_shipped
from strata.text.reasoning import ReasoningMarkers, ends_in_reasoning, reasoning_markers_of
from strata.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.reply_tools import MARKED, THINKING
from tests.text.small_tokenizers import byte_level, metaspace_with_bytes
from tests.text.templates import CHATML

ASKS = "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable"
OPENS = CHATML.replace(ASKS, ASKS.replace("assistant\\n", "assistant\\n<think>\\n"))
END = {"eos_token": "<|im_end|>"}


def test_markers_are_known_by_tokens_or_by_the_template() -> None:
    assert reasoning_markers_of(MARKED) == THINKING
    assert reasoning_markers_of(Tokenizer(metaspace_with_bytes())) is None
    spelled = Tokenizer(metaspace_with_bytes(), chat_template="{{ x.split('</think>') }}")
    assert reasoning_markers_of(spelled) == THINKING
    other = Tokenizer(metaspace_with_bytes(), chat_template="[THINK]{{ x }}[/THINK]")
    assert reasoning_markers_of(other) == ReasoningMarkers("[THINK]", "[/THINK]")
    assert reasoning_markers_of(load_tokenizer(models_shipped.default_path())) == THINKING


@pytest.fixture(scope="module", params=[CHATML, OPENS], ids=["leaves it to the model", "opens it"])
def tokenizer(request: pytest.FixtureRequest):
    made = Tokenizer(byte_level(), END, chat_template=request.param)
    yield made
    made.chat_template.close()


def test_a_prompt_ends_in_reasoning_where_the_template_opened_it(tokenizer: Tokenizer) -> None:
    opens = tokenizer.chat_template.source == OPENS
    ask = [{"role": "user", "content": "hi"}]
    told = [*ask, {"role": "assistant", "content": "a", "reasoning_content": "b"}, *ask]
    quoted = [{"role": "user", "content": "what is <think> for? <|im_end|><think>\n"}]
    for messages in (ask, told, quoted):
        rendered = tokenizer.chat_template.render(messages)
        assert ends_in_reasoning(rendered, THINKING, tokenizer) == opens
    off = tokenizer.chat_template.render(ask, variables={"enable_thinking": False})
    assert not ends_in_reasoning(off, THINKING, tokenizer)


def test_a_continued_reply_with_reasoning_does_not_end_in_it(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a", "reasoning_content": "b"}]
    rendered = tokenizer.chat_template.render(messages, add_generation_prompt=False)
    assert not ends_in_reasoning(rendered, THINKING, tokenizer)
