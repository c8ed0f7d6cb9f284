"""Chat templates: the text that transformers renders, a user's own marked, and nothing that a template can break."""

import datetime
import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata.errors import RequestError, TemplateError
from strata.text.chat_template import ChatTemplate, TemplateLimits
from tests.text.small_tokenizers import MARKUP, SPECIALS
from tests.text.templates import CHATML, STRING_WORK

LITERALS = [*SPECIALS, *MARKUP]
USER = [{"role": "user", "content": "hello"}]
SHORT = TemplateLimits(seconds=0.5)
TOOLS = [{"type": "function", "function": {"name": "f<|im_end|>", "parameters": {"<think>": "<b> & 'ü'"}}}]


def reference(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    chats, _ = utils.render_jinja_template([messages], chat_template=template, **variables)
    return str(chats[0])


@pytest.fixture(scope="module")
def chatml() -> ChatTemplate:
    return ChatTemplate(CHATML, LITERALS)


@pytest.fixture(scope="module")
def string_work() -> ChatTemplate:
    return ChatTemplate(STRING_WORK, LITERALS)


# Text made of what matters to templates and tokenizers: literals, halves of literals, markup, any character.
TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *LITERALS,
                "<",
                "<b",
                ">",
                "</",
                "think>",
                "think",
                "tool_call>",
                "<|im_",
                "end|>",
                "\n",
                " ",
                "a",
                "é",
                "\ufdd0",
            ]
        ),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    ),
    max_size=6,
).map("".join)
CALL = st.fixed_dictionaries({"name": TEXT, "arguments": st.dictionaries(TEXT, TEXT, max_size=2)})
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": TEXT}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXT, "reasoning_content": TEXT}),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": TEXT,
            "tool_calls": st.lists(st.fixed_dictionaries({"function": CALL}), max_size=2),
        }
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_text_equals_the_reference_whatever_a_user_writes(
    chatml: ChatTemplate, messages: list[dict[str, Any]], with_tools: bool, thinking: bool
) -> None:
    tools = TOOLS if with_tools else None
    rendered = chatml.render(messages, tools, variables={"enable_thinking": thinking})
    expected = reference(CHATML, messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking)
    assert rendered.text == expected


@settings(max_examples=80, deadline=None)
@given(TEXT)
@example("</think>")
@example("<\x7f")
@example("think")
@example("think>x")
@example("<think>")
@example("a</think>b<think>c</think>d")
def test_templates_do_not_notice_marks(string_work: ChatTemplate, content: str) -> None:
    messages = [{"role": "user", "content": content or "x"}]
    assert string_work.render(messages).text == reference(STRING_WORK, messages, add_generation_prompt=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_literals_of_a_user_never_stand_unmarked(chatml: ChatTemplate, contents: list[str]) -> None:
    """However much of a control token each message holds: as many stand unmarked as if all had been empty."""
    messages = [{"role": "user", "content": content} for content in contents]
    empty = chatml.render([{"role": "user", "content": ""} for _ in contents])
    rendered = chatml.render(messages)
    for literal in LITERALS:
        assert rendered.marked_text.count(literal) == empty.text.count(literal)


def test_literals_joined_from_parts_do_not_stand_unmarked() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content | replace('X', '') }}{% endfor %}", LITERALS)
    parts = [{"role": "user", "content": part} for part in ("<|im_", "enXd|>", "<", "|im_end|", ">", "<|Xim_end|>")]
    rendered = template.render(parts)
    assert rendered.text == "<|im_end|>" * 3
    assert "<|im_end|>" not in rendered.marked_text


def test_names_that_a_template_puts_between_its_brackets_make_no_control_token() -> None:
    source = "{% for k, v in tools[0].items() %}<{{ k }}>{{ v }}</{{ k }}>{{ k | replace('im', 'am') }}{% endfor %}"
    tools = [{"tool_call": "a", "|im_end|": "end|>", "think>x</think": ""}]
    rendered = ChatTemplate(source, LITERALS).render(USER, tools)
    assert rendered.text == reference(source, USER, tools=tools)
    assert not any(literal in rendered.marked_text for literal in LITERALS)


def test_control_token_named_by_a_role_is_the_templates_own() -> None:
    template = ChatTemplate("{{ '<|' + messages[0].role + '|>' }}", ["<|user|>"])
    assert template.render(USER).marked_text == "<|user|>"


def test_environment_has_what_published_templates_use() -> None:
    source = (
        "{{ strftime_now('%d %b %Y') }} {{ bos_token }}{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}\n{% generation %}{{ {'ä<': [1, none]} | tojson }}\n"
        "{% endgeneration %}"
    )
    template = ChatTemplate(source, special_variables={"bos_token": "<s>"})
    text = template.render(USER, now=datetime.datetime(2026, 3, 4)).text
    assert text == '04 Mar 2026 <s>02{"ä<": [1, null]}\n'


def test_reasoning_is_given_under_the_name_that_templates_read() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}{{ messages[0].tool_calls is defined }}")
    message = {"role": "assistant", "content": "a", "reasoning": "why", "tool_calls": None}
    assert template.render([message]).text == "whyFalse"


BOMBS = {
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "string": "{{ 'a' * 10**10 }}",
    "string made at run time": "{{ messages[0].content * 10**10 }}",
    "padding": "{{ 'x' | center(10**10) }}",
    "format": "{{ '%09999999999d' % 5 }}",
    "format method": "{{ '{:>9999999999}'.format(1) }}",
    "list": "{{ [0] * 10**10 }}",
    "doubling": "{% set ns = namespace(v='aaaa') %}{% for i in range(99) %}{% set ns.v = ns.v + ns.v %}{% endfor %}",
    "power": "{% set ns = namespace(v=9) %}{% for i in range(30) %}{% set ns.v = ns.v ** 9 %}{% endfor %}",
    "constant power": "{{ 9 ** (9 ** 9) }}",
    "loops": "{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(9**5) %}{{ 'x' * 1000 }}{% endfor %}",
    "macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "words": "{{ lipsum(10**5) }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_end_quickly(source: str) -> None:
    template = ChatTemplate(source, LITERALS, limits=SHORT)
    started = time.monotonic()
    with pytest.raises(TemplateError):
        template.render(USER)
    assert time.monotonic() - started < 5
    template.close()


def test_each_limit_is_named() -> None:
    limits = TemplateLimits(seconds=0.5, output_characters=1000, memory_bytes=128 << 20)
    for source, sentence in (
        (BOMBS["loops"], "card ran longer than 0.5 s"),
        (BOMBS["output"], "card wrote more than 1000 characters"),
        (BOMBS["string made at run time"], "card needed more than 128 MiB of memory"),
    ):
        with pytest.raises(TemplateError, match=sentence):
            ChatTemplate(source, name="card", limits=limits).render(USER)


def test_a_failed_render_costs_only_itself() -> None:
    template = ChatTemplate("{% if messages[0].content == 'loop' %}" + BOMBS["loops"] + "{% endif %}fine", limits=SHORT)
    assert template.render(USER).text == "fine"
    with pytest.raises(TemplateError):
        template.render([{"role": "user", "content": "loop"}])
    assert template.render(USER).text == "fine"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception.__globals__.re }}",
    ],
)
def test_sandbox_refuses_what_reaches_outside(source: str) -> None:
    with pytest.raises(TemplateError, match="line 1"):
        ChatTemplate(source).render(USER)


def test_errors_name_the_line() -> None:
    with pytest.raises(TemplateError, match="line 3: Expected an expression"):
        ChatTemplate("a\n\n{% if %}").check()
    with pytest.raises(TemplateError, match="line 2: 'nothing' is undefined"):
        ChatTemplate("{{ 1 }}\n{{ nothing.at.all }}").render(USER)


def test_refusal_by_the_template_is_the_requests_fault_and_shows_no_mark() -> None:
    template = ChatTemplate("{{ raise_exception('no ' + messages[0].content) }}", LITERALS)
    with pytest.raises(RequestError, match=r"refuses the messages: no <\|im_end\|>$"):
        template.render([{"role": "user", "content": "<|im_end|>"}])


def test_what_is_no_json_is_refused_by_name() -> None:
    template = ChatTemplate("x")
    with pytest.raises(RequestError, match=r"plain JSON values.*bytes"):
        template.render([{"role": "user", "content": b"x"}])
    with pytest.raises(RequestError, match=r"messages\[0\] is str"):
        template.render(["hello"])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="'messages' is set by the chat itself"):
        template.render(USER, variables={"messages": []})


def test_a_template_that_was_killed_from_outside_starts_again() -> None:
    template = ChatTemplate("fine")
    template.render(USER)
    assert template._worker is not None
    _, _, (process, _), _ = template._worker.end.peek() or pytest.fail("the worker has ended")
    process.kill()
    assert template.render(USER).text == "fine"


def test_private_use_characters_of_a_user_stay() -> None:
    content = "".join(map(chr, range(0xFDD0, 0xFDF0))) + "<\ue000\ue0a0>"
    rendered = ChatTemplate("{{ messages[0].content }}", LITERALS).render([{"role": "user", "content": content}])
    assert rendered.text == content
    assert rendered.mark not in content


def test_a_warm_render_takes_milliseconds(chatml: ChatTemplate) -> None:
    messages = [{"role": "user", "content": "What is <b>it</b>?"}, {"role": "assistant", "content": "It is"}] * 5
    chatml.render(messages)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        chatml.render(messages)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.010, json.dumps(seconds)
