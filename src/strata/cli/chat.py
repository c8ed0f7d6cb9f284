"""`strata chat`: a conversation at the terminal.

Knows lines, commands and the list of messages; replies are made by `strata.api` and shown by `reply`.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from strata.api import Engine, default_options
from strata.cli.console import progress_bar, report_notices, statistics_line, write_line
from strata.cli.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from strata.cli.flags import FLAT, EngineFlags, GenerationFlags, GivenPath, said
from strata.cli.reply import stream_reply
from strata.errors import RequestError, TextError
from strata.sampling.options import SamplingOptions
from strata.settings import resolve
from strata.text.tokenizer import decode_utf8
from strata.types import FinishReason, Message

HELP = "/reset forgets the conversation, /system TEXT sets the system message, /quit leaves; Ctrl-C ends a reply"
PROMPT = "> "


def chat(
    *,
    model: GivenPath | None = None,
    system: str | None = None,
    engine: Annotated[EngineFlags | None, FLAT] = None,
    generation: Annotated[GenerationFlags | None, FLAT] = None,
) -> int:
    """Talk with a model. Ctrl-C ends a reply; at the prompt, twice, it leaves.

    Parameters
    ----------
    model
        A model directory or GGUF file; the small model that ships with strata if not given.
    system
        A system message that stands before the conversation.
    """
    if sys.stdin is None:
        raise RequestError("standard input is closed: a chat reads its lines from there")
    settings = resolve(said(engine, generation))
    options = default_options(settings.generation)
    system = None if system is None else decode_utf8(os.fsencode(system), "--system")
    with progress_bar() as progress, Engine(model, settings=settings, progress=progress) as opened:
        report_notices(opened.notices)
        if not opened.has_chat_template:
            raise RequestError(
                f"{opened.directory} has no chat template, so it cannot be talked with: "
                "`strata generate` continues a text"
            )
        _enable_line_editing()
        return Conversation(opened, options, system).run(_read_line)


@dataclass
class Conversation:
    """What was said so far, and the loop that goes on with it."""

    engine: Engine
    options: SamplingOptions
    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    def run(self, read_line: Callable[[str], str]) -> int:
        """Read lines until the user leaves; returns the exit code."""
        write_line(HELP)
        interrupted = False
        while True:
            try:
                line = read_line(PROMPT).strip()
            except EOFError:
                write_line("")
                return EXIT_OK
            except UnicodeDecodeError as failure:
                write_line(f"error: the line is not valid UTF-8 at offset {failure.start}")
                continue
            except KeyboardInterrupt:
                if interrupted:
                    write_line("")
                    return EXIT_INTERRUPTED
                interrupted = True
                write_line("\n(Ctrl-C again or /quit leaves)")
                continue
            interrupted = False
            if line.split()[:1] == ["/quit"]:
                return EXIT_OK
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self.turns.clear()
            write_line("(the conversation is forgotten)")
        elif name == "/system":
            self.system = rest.strip() or None
            self.turns.clear()
            write_line("(a new conversation begins" + (", with this system message)" if self.system else ")"))
        else:
            write_line(f"there is no command {name}: {HELP}")

    def _answer(self, line: str) -> None:
        """One turn; what could not be answered is not kept, a reply that was cut short is."""
        before = [Message("system", self.system)] if self.system is not None else []
        try:
            question = Message("user", decode_utf8(os.fsencode(line), "the line"))
            reply = self.engine.chat([*before, *self.turns, question], self.options)
        except (RequestError, TextError) as mistake:
            write_line(f"error: {mistake}")
            return
        text, finished = stream_reply(reply)
        write_line(f"({statistics_line(finished, reply.seed)})")
        if finished.reason is FinishReason.ERROR:
            write_line(f"error: {finished.error}")
        elif text:
            self.turns += [question, Message("assistant", text)]


def _read_line(prompt: str) -> str:
    """The next line of stdin. The prompt is for who types, and no part of what a pipe gets from stdout."""
    if not sys.stdin.isatty():
        return input()
    if sys.stdout.isatty():
        return input(prompt)  # line editing must know it
    if sys.stderr is not None:
        print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _enable_line_editing() -> None:
    """Arrow keys and history at the prompt, where the system has them."""
    if sys.stdin is not None and sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # importing it changes what input() does
