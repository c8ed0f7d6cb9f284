"""What commands write to a terminal: text made harmless, a progress bar, the line of statistics.

Knows the small values of `types` and the names of stages; knows no engine.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from strata.cli.reading import ReadingPace
from strata.engine.control import READING
from strata.types import Finished, FinishReason, ProgressCallback

# A model's text and a file's names must not steer the terminal: control characters except tab and line feed.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with control characters and unpaired surrogates shown instead of sent."""
    shown = _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def write_reply(text: str) -> None:
    """A piece of a reply to stdout, at once; made harmless if a terminal shows it."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_line(text: str) -> None:
    """One line to stderr, made harmless; nowhere if stderr is closed or full: a reply is worth more than its lines."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(printable(text), file=sys.stderr)


def report_notices(notices: Iterable[str]) -> None:
    """What the user should know about the model that was loaded."""
    for notice in notices:
        write_line(f"note: {notice}")


def statistics_line(finished: Finished, seed: int | None = None) -> str:
    """One line about a reply: how much was read and written, how fast, what drafting gave, and why it ended.

    `seed`: the seed of a reply that was drawn, with which it can be had again.
    """
    usage = finished.usage
    if not usage.completion_tokens:
        return f"{finished.reason.value} before the first token of a reply to {usage.prompt_tokens} prompt tokens"
    parts = [f"{usage.prompt_tokens} prompt tokens at {usage.prompt_tokens_per_second:.0f}/s"]
    if usage.completion_tokens == 1:
        parts.append("1 token")  # which came with reading the prompt
    else:
        parts.append(f"{usage.completion_tokens} tokens at {usage.tokens_per_second:.1f}/s")
    if usage.drafted_tokens:
        parts.append(f"{usage.accepted_drafts} of {usage.drafted_tokens} drafts accepted")
    if seed is not None:
        parts.append(f"seed {seed}")
    if finished.reason is not FinishReason.STOP:
        parts.append(f"ended by {finished.reason.value}")
    return ", ".join(parts)


class _Bar:
    """A bar for the stage that reports now; it goes when the stage is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._pace = ReadingPace()

    def report(self, stage: str, done: int, total: int) -> None:
        """See ProgressCallback."""
        if done >= total:
            self.stop()
            return
        if self._bar is None:
            self._pace = ReadingPace()
            self._bar = _make_bar(self._stream)
            self._bar.add_task(stage, total=total, shown="")
        shown = self._pace.words(done, total) if stage == READING else f"{100 * done / total:3.0f} %"
        self._bar.update(self._bar.task_ids[0], description=stage, completed=done, total=total, shown=shown)
        self._bar.start()  # once more changes nothing

    def stop(self) -> None:
        """Remove the bar if there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _make_bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        console=Console(file=stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def progress_bar(stream: TextIO | None = None) -> Iterator[ProgressCallback | None]:
    """A callback that shows a bar on a terminal for each stage that reports; None where no terminal is.

    A stage's bar goes when the stage is done, at the latest when the block ends.
    """
    stream = stream or sys.stderr
    if stream is None or not stream.isatty():
        yield None
        return
    bar = _Bar(stream)
    try:
        yield bar.report
    finally:
        bar.stop()
