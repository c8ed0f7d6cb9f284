"""`strata chat`: turns build on each other, commands, a reply cut short, and the two ways out."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strata
from strata.cli.app import run
from strata.cli.chat import Conversation
from strata.sampling.options import SamplingOptions
from strata.types import Message


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[strata.Engine]:
    with strata.Engine(tiny_model) as opened:
        yield opened


def typing(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """A reader that gives these lines, raises these exceptions, and then the end of input."""
    waiting = iter(lines)

    def read_line(prompt: str) -> str:
        line = next(waiting, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read_line


def converse(engine: strata.Engine, *lines: str | type[BaseException], max_tokens: int = 6) -> tuple[int, Conversation]:
    conversation = Conversation(engine, SamplingOptions(max_tokens=max_tokens))
    return conversation.run(typing(*lines)), conversation


def test_turns_are_kept_and_shown_with_their_speed(engine: strata.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    code, conversation = converse(engine, "Hello", "And again")
    said = capsys.readouterr()
    assert code == 0
    assert [turn.role for turn in conversation.turns] == ["user", "assistant"] * 2
    assert conversation.turns[1].content.strip() in said.out
    assert said.err.count("6 tokens at") == 2
    alone = engine.chat([Message("user", "Hello")], SamplingOptions(max_tokens=6)).text()
    assert conversation.turns[1].content == alone


def test_second_turn_reads_the_first(engine: strata.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    converse(engine, "Hello", "Hello")
    lines = [line for line in capsys.readouterr().err.splitlines() if "prompt tokens" in line]
    counts = [int(line.split()[0].strip("(")) for line in lines]
    assert counts[1] > counts[0]


def test_reset_forgets_and_system_begins_anew(engine: strata.Engine) -> None:
    _, conversation = converse(engine, "Hello", "/reset")
    assert conversation.turns == []
    _, conversation = converse(engine, "Hello", "/system Be brief")
    assert (conversation.turns, conversation.system) == ([], "Be brief")


def test_quit_and_end_of_input_leave_with_0(engine: strata.Engine) -> None:
    assert converse(engine, "/quit", "never read")[0] == 0
    assert converse(engine, "/quit now", KeyboardInterrupt, KeyboardInterrupt)[0] == 0
    assert converse(engine)[0] == 0


def test_ctrl_c_twice_at_the_prompt_leaves_and_once_does_not(engine: strata.Engine) -> None:
    assert converse(engine, KeyboardInterrupt, KeyboardInterrupt)[0] == 130
    code, conversation = converse(engine, KeyboardInterrupt, "Hello", KeyboardInterrupt)
    assert (code, len(conversation.turns)) == (0, 2)


def test_line_that_is_not_utf8_is_refused_and_forgotten(
    engine: strata.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    _, conversation = converse(engine, os.fsdecode(b"caf\xe9"), "Hello")
    assert "the line is not valid UTF-8: byte 0xe9 at offset 3" in capsys.readouterr().err
    assert [turn.content for turn in conversation.turns[::2]] == ["Hello"]


def test_unknown_command_and_empty_line_ask_nothing(engine: strata.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    _, conversation = converse(engine, "/nonsense", "", "   ")
    assert conversation.turns == []
    assert "no command /nonsense" in capsys.readouterr().err


def test_turn_that_is_too_long_is_refused_and_forgotten(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with strata.Engine(tiny_model, context=60) as small:
        _, conversation = converse(small, "Hello", "harbour " * 100, "Bye")
        assert "context holds 60" in capsys.readouterr().err
        assert [turn.content for turn in conversation.turns[::2]] == ["Hello", "Bye"]


def test_reply_that_was_cut_short_stays_in_the_conversation(
    engine: strata.Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = engine.chat

    def cut(*arguments: Any) -> Any:
        reply = real(*arguments)
        take = type(reply)._take

        def take_and_cancel(event: Any) -> None:
            reply.cancel()
            take(reply, event)

        monkeypatch.setattr(reply, "_take", take_and_cancel)
        return reply

    monkeypatch.setattr(engine, "chat", cut)
    _, conversation = converse(engine, "Hello", max_tokens=3000)
    assert "ended by cancelled" in capsys.readouterr().err
    assert [turn.role for turn in conversation.turns] == ["user", "assistant"]


def test_piped_lines_get_replies_and_no_prompt_on_stdout(
    tiny_model: Path, engine: strata.Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert run(["chat", "--model", str(tiny_model), "--max-tokens", "6"]) == 0
    reply = engine.chat([Message("user", "Hello")], SamplingOptions(max_tokens=6)).text()
    assert capsys.readouterr().out.rstrip("\n") == reply.rstrip("\n")


def test_closed_stdin_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run(["chat"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_model_without_a_template_is_refused(broken_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (broken_model / "chat_template.jinja").unlink()
    assert run(["chat", "--model", str(broken_model)]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_wrong_setting_is_refused(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--model", str(tiny_model), "--top-p", "7"]) == 2
    assert "top_p" in capsys.readouterr().err
