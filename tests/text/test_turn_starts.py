"""Where the turns of a chat begin, for templates of several makes: control tokens that the template itself wrote."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from strata import models_shipped
from strata.text.chat_template import TemplateLostError
from strata.text.tokenizer import Tokenizer, load_tokenizer
from strata.text.turn_starts import TurnStarts
from tests.text.small_tokenizers import byte_level
from tests.text.templates import CHATML

OPENED = CHATML.replace(
    "'<|im_start|>assistant\\n' }}\n    {%- if enable", "'<|im_start|>assistant\\n<think>' }}\n{%- if enable"
)
# Turns of the assistant begin where the user's end, and the system prompt stands inside of the first one.
INSTRUCT = (
    "<|endoftext|>{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'user' %}<tool_call>"
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}</tool_call>{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
ROLE_TOKENS = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ '<think>' if m.role == 'user' else '</think>' }}{{ m.content }}{% if m.role != 'user' %}<|im_end|>{% endif %}"
    "{% endfor %}</think>"
)
SPELLED = "{% for m in messages %}### {{ m.role }}: {{ m.content }}\n{% endfor %}### assistant:"
CHAT = [
    {"role": "system", "content": "ships <|im_start|>user"},
    {"role": "user", "content": "a harbour"},
    {"role": "assistant", "content": "it said"},
    {"role": "user", "content": "deep <think> enough"},
]
END = {"eos_token": "<|im_end|>"}


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes tokenizers with a template."""
    kept = []

    def make(template: str, config: Any = END) -> Tokenizer:
        kept.append(Tokenizer(byte_level(), config, chat_template=template))
        return kept[-1]

    yield make
    for tokenizer in kept:
        tokenizer.chat_template.close()


def tails(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[str]:
    """The text from each boundary up to the next one."""
    token_ids = tokenizer.encode_chat(messages)
    places = TurnStarts(tokenizer).of(token_ids)
    bounds = [*places, len(token_ids)]
    return [tokenizer.decode(token_ids[start:stop], show_special=True) for start, stop in itertools.pairwise(bounds)]


@pytest.mark.parametrize(
    ("template", "turns"),
    [
        (CHATML, ["<|im_start|>user", "<|im_start|>assistant", "<|im_start|>user", "<|im_start|>assistant\n"]),
        (OPENED, ["<|im_start|>user", "<|im_start|>assistant", "<|im_start|>user", "<|im_start|>assistant\n<think>"]),
        (INSTRUCT, ["<tool_call>ships", "</tool_call>it", "<tool_call>deep", "</tool_call>"]),
        (SPELLED, []),
    ],
)
def test_turns_begin_at_the_templates_own_tokens(made: Any, template: str, turns: list[str]) -> None:
    found = tails(made(template), CHAT)
    assert len(found) == len(turns)
    assert all(each.startswith(turn) for each, turn in zip(found, turns, strict=True))


def test_a_template_without_system_prompts_is_asked_without_one(made: Any) -> None:
    found = tails(made(ROLE_TOKENS), CHAT[1:])
    assert [each.split(">")[0] for each in found] == ["</think", "<think", "</think"]


def test_ends_of_turns_will_do_where_nobody_says_that_they_are_ends(made: Any) -> None:
    found = tails(made(CHATML, {}), CHAT)
    assert [each[:12] for each in found] == ["<|im_end|>\n<"] * 4


def test_no_turns_without_a_template_or_with_one_that_fails(made: Any) -> None:
    assert TurnStarts(Tokenizer(byte_level())).of([1, 2, 1]) == ()
    assert TurnStarts(made("{{ raise_exception('never') }}")).of([1, 2, 1]) == ()
    assert TurnStarts(made("{{ 1 / 0 }}")).of([1, 2, 1]) == ()


def test_a_lost_process_is_asked_again(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made(CHATML)
    starts, token_ids = TurnStarts(tokenizer), tokenizer.encode_chat(CHAT)
    with monkeypatch.context() as patched:

        def lost(*given: Any, **named: Any) -> Any:
            raise TemplateLostError("its process ended")

        patched.setattr(tokenizer.chat_template, "render", lost)
        assert starts.of(token_ids) == ()
    assert len(starts.of(token_ids)) == 4


def test_turns_of_the_shipped_model() -> None:
    tokenizer = load_tokenizer(models_shipped.default_path())
    assert len(tails(tokenizer, CHAT)) == 4
    assert tokenizer.chat_template is not None
    tokenizer.chat_template.close()
