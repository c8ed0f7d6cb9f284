"""Chat templates: messages in, the prompt's text out, with a user's text kept apart from the template's own.

Knows the template's language and its limits; which ids the text becomes is `tokenizer.py`'s matter.

A template comes with a model and is untrusted code. A sandbox inside this process cannot bound it: `10 ** 10 ** 10`
or `"a" * 10 ** 9` spend their time and memory in one call of C code, which no step counter sees and no Python signal
interrupts. So it runs in a child (`template_worker.py`) that is kept warm: the kernel bounds its memory and denies it
files, sockets and children, and a clock here kills it when it is late. Measured on a busy two-core machine: a chat
of ten messages 0.5 ms, one of 1 MB 36 ms, the child's start 65-105 ms (`start` has it begin before the first render).
"""

import dataclasses
import datetime
import json
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from strata.errors import RequestError, TemplateError

_WORKER = Path(__file__).with_name("template_worker.py")
_START_SECONDS = 30.0  # interpreter and imports take 70 ms; a machine that is swapping may need longer
# Non-characters, then private use: none of them occurs in ordinary text, and one that occurs is not chosen.
_MARKS = [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900)]
_RESERVED_VARIABLES = frozenset(("messages", "tools", "documents", "add_generation_prompt"))


class TemplateOutputError(TemplateError):
    """The template wrote more than its limit."""


class TemplateTimeError(TemplateError):
    """The template ran longer than its limit."""


class TemplateLostError(TemplateError):
    """The template's process ended while it rendered: it says nothing about the messages."""


@dataclass(frozen=True)
class TemplateLimits:
    """What one render may use."""

    seconds: float = 2.0  # wall time, compiling and rendering each
    output_characters: int = 4 << 20
    memory_bytes: int = 512 << 20  # address space of the child, of which Python and jinja2 take about 30 MiB


@dataclass(frozen=True)
class RenderedPrompt:
    """A rendered prompt in which control tokens typed by a user differ from those that the template wrote."""

    marked_text: str
    mark: str  # stands inside whatever of a user's text could be taken for a control token; "" if nothing can

    @property
    def text(self) -> str:
        """The prompt as other implementations render it."""
        return self.marked_text.replace(self.mark, "") if self.mark else self.marked_text


class ChatTemplate:
    """One chat template behind its limits. Safe to use from several threads, one render at a time.

    `control_literals`: the control tokens that a user must not be able to write. `special_variables`: what the
    tokenizer gives to the template by name (`bos_token` ...). `name` stands in error messages.
    """

    def __init__(
        self,
        source: str,
        control_literals: Iterable[str] = (),
        special_variables: Mapping[str, str] | None = None,
        name: str = "chat template",
        limits: TemplateLimits = TemplateLimits(),
    ) -> None:
        self.source = source
        self.name = name
        self.limits = limits
        self._literals = sorted(control_literals)
        self._special_variables = dict(special_variables or {})
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the child and return at once; the first render then finds it ready. Optional."""
        with self._lock:
            self._started_worker()

    def check(self) -> None:
        """Wait until the template is compiled; raises TemplateError with the line if it does not."""
        with self._lock:
            self._ready_worker()

    def close(self) -> None:
        """End the child. A later render starts another one."""
        with self._lock:
            self._drop_worker()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        now: datetime.datetime | None = None,
    ) -> RenderedPrompt:
        """Render a conversation of plain JSON values; `variables` are the caller's extras such as `enable_thinking`.

        A message's fields that are None count as absent; `reasoning` is also given as `reasoning_content`, the name
        that templates read. `now` is what `strftime_now` tells (default: this moment).
        Raises RequestError if the request is not JSON or the template refuses it by `raise_exception`; TemplateError
        if the template fails or passes a limit.
        """
        if taken := sorted(_RESERVED_VARIABLES & set(variables or {})):
            raise RequestError(f"template variable {taken[0]!r} is set by the chat itself; use another name")
        values = dict(variables or {}) | {
            "messages": [_completed(message, index) for index, message in enumerate(messages)],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            encoded = json.dumps(values, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise RequestError(f"messages, tools and template variables must be plain JSON values: {error}") from error
        mark = self._unused_character(encoded) if self._literals else ""
        moment = (now or datetime.datetime.now()).isoformat()
        others = json.dumps({"trusted": self._special_variables, "mark": mark, "now": moment})
        with self._lock:
            return RenderedPrompt(self._ask(f'{{"variables": {encoded}, {others[1:]}'), mark)

    def _unused_character(self, encoded: str) -> str:
        usual = chr(_MARKS[0])
        if usual not in encoded and usual not in self.source:
            return usual
        used = set(encoded) | set(self.source)
        for code in _MARKS:
            if chr(code) not in used:
                return chr(code)
        raise RequestError(f"messages hold each of {len(_MARKS)} private-use characters; leave one out")

    def _started_worker(self) -> "_Worker":
        if self._worker is None:
            self._worker = _start_worker(self.source, self._literals, self.limits)
        return self._worker

    def _ready_worker(self) -> "_Worker":
        worker = self._started_worker()
        if not worker.ready:
            if worker.receive(time.monotonic() + _START_SECONDS) is None:
                self._drop_worker()
                raise TemplateError(f"{self.name}: the process that renders it did not start")
            self._text_of(worker.receive(time.monotonic() + self.limits.seconds))
            worker.ready = True
        return worker

    def _ask(self, request: str) -> str:
        for _ in range(2):  # once more with a new child if the old one was ended from outside since the last render
            worker = self._ready_worker()
            deadline = time.monotonic() + self.limits.seconds
            answer = worker.receive(deadline) if worker.send(request, deadline) else None
            if answer is not None or worker.late:
                break
            self._drop_worker()
        return self._text_of(answer)

    def _text_of(self, answer: dict[str, Any] | None) -> str:
        """The text of an answer; every failure but a refusal costs the worker, which may be left in any state."""
        if answer is not None and "text" in answer:
            return str(answer["text"])
        if answer is not None and answer["kind"] == "refused":
            raise RequestError(f"the chat template refuses the messages: {answer['error']}")
        late = self._worker is not None and self._worker.late
        self._drop_worker()
        raise _kind_of_failure(answer, late)(f"{self.name}{_failure(answer, late, self.limits)}")

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def _completed(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"messages[{index}] is {type(message).__name__}; it must be an object with role and content")
    present = {key: value for key, value in message.items() if value is not None}
    if "reasoning" in present:
        present.setdefault("reasoning_content", present["reasoning"])
    return present


def _kind_of_failure(answer: dict[str, Any] | None, late: bool) -> type[TemplateError]:
    if answer is None:
        return TemplateTimeError if late else TemplateLostError
    return TemplateOutputError if answer["kind"] == "output" else TemplateError


def _failure(answer: dict[str, Any] | None, late: bool, limits: TemplateLimits) -> str:
    if answer is None:
        return f" ran longer than {limits.seconds:g} s" if late else ": its process ended while it rendered"
    line = "" if answer["line"] is None else f", line {answer['line']}"
    if answer["kind"] == "output":
        return f" wrote more than {limits.output_characters} characters"
    if answer["kind"] == "memory":
        return f" needed more than {limits.memory_bytes >> 20} MiB of memory"
    return f"{line}: {answer['error']}"


class _Worker:
    """The child process: lines of JSON over a socket, each with a deadline."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        self.ready = False  # the template is compiled
        self.late = False  # a deadline passed
        self._connection = connection
        self._rest = b""  # what came behind the last answer
        self.end = weakref.finalize(self, _end_process, process, connection)

    def send(self, line: str, deadline: float) -> bool:
        """False if the process ended or the deadline (of `time.monotonic`) passed."""
        try:
            self._set_time_left(deadline)
            self._connection.sendall(line.encode("utf-8", "surrogatepass") + b"\n")  # as json reads it
        except OSError as error:
            self.late = isinstance(error, TimeoutError)
            return False
        return True

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next answer; None if the process ended or the deadline passed instead."""
        parts = [self._rest]
        try:
            while b"\n" not in parts[-1]:
                self._set_time_left(deadline)
                parts.append(self._connection.recv(1 << 20))
                if not parts[-1]:
                    return None
        except OSError as error:
            self.late = isinstance(error, TimeoutError)
            return None
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return dict(json.loads(line))

    def _set_time_left(self, deadline: float) -> None:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)


def _start_worker(source: str, literals: list[str], limits: TemplateLimits) -> _Worker:
    libraries = [str(Path(module.__file__ or "").parent.parent) for module in (jinja2, markupsafe)]
    start = f"import runpy, sys; sys.path += {libraries!r}; runpy.run_path({str(_WORKER)!r}, run_name='__main__')"
    connection, end_of_child = socket.socketpair()
    with end_of_child:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start],
            stdin=end_of_child.fileno(),
            stdout=end_of_child.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal ends a reply, not the renderer
        )
    worker = _Worker(process, connection)
    settings = {"source": source, "literals": literals} | dataclasses.asdict(limits)
    worker.send(json.dumps(settings), time.monotonic() + _START_SECONDS)
    return worker


def _end_process(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    process.kill()
    process.wait()
    connection.close()
