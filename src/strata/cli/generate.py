"""`strata generate`: answers one prompt on stdout, statistics on stderr.

Knows where a prompt comes from and where its reply goes; the reply is made by `strata.api`.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strata.api import Engine, Generation, default_options
from strata.cli.console import progress_bar, report_notices, statistics_line, write_line
from strata.cli.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from strata.cli.flags import FLAT, EngineFlags, GenerationFlags, GivenPath, said
from strata.cli.prompts import STANDARD_INPUT, argument_text, read_prompt, read_prompt_file
from strata.cli.reading import ReadingLines
from strata.cli.reply import stream_reply
from strata.errors import EngineError, RequestError
from strata.sampling.options import SamplingOptions
from strata.settings import resolve
from strata.types import FinishReason, Message


def generate(
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    file: Annotated[GivenPath | None, Parameter(allow_leading_hyphen=True)] = None,
    model: GivenPath | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    system: str | None = None,
    stop: Annotated[list[str] | None, Parameter(negative="")] = None,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    engine: Annotated[EngineFlags | None, FLAT] = None,
    generation: Annotated[GenerationFlags | None, FLAT] = None,
) -> int:
    """Answer one prompt, or continue a text.

    Parameters
    ----------
    prompt
        What to answer; - reads it from stdin.
    file
        A text file that holds the prompt, instead of the prompt itself; - is stdin.
    model
        A model directory or GGUF file; the small model that ships with strata if not given.
    raw
        Continue the prompt as text instead of answering it as a message.
    system
        A system message before the prompt.
    stop
        End the reply before this string; may be given several times.
    quiet
        No lines about how it went.
    """
    settings = resolve(said(engine, generation))
    stops = tuple(argument_text(text, "--stop") for text in stop or ())
    options = default_options(settings.generation, stop=stops)
    system = None if system is None else argument_text(system, "--system")
    text = _prompt_text(prompt, file, raw=raw)
    lines = None if quiet else ReadingLines(write_line)
    with progress_bar() as bar, Engine(model, settings=settings, progress=bar or lines) as opened:
        report_notices(opened.notices)
        reply = _start(opened, text, system, options, raw=raw)
        _, finished = stream_reply(reply)
    if not quiet:
        write_line(statistics_line(finished, reply.seed))
    if finished.error is not None:
        raise EngineError(finished.error)
    return EXIT_INTERRUPTED if finished.reason is FinishReason.CANCELLED else EXIT_OK


def _prompt_text(prompt: str | None, file: Path | None, *, raw: bool) -> str:
    if prompt is not None and file is not None:
        raise RequestError(f"the prompt is given twice, as text and by --file {file}: leave one of them out")
    if file is not None and str(file) != STANDARD_INPUT:
        return read_prompt_file(file, raw=raw)
    if prompt is None and file is None:
        raise RequestError("there is no PROMPT: give a text, - for standard input, or --file and a text file")
    return read_prompt(STANDARD_INPUT if prompt is None else prompt, raw=raw)


def _start(engine: Engine, prompt: str, system: str | None, options: SamplingOptions, *, raw: bool) -> Generation:
    if raw or not engine.has_chat_template:
        if system is not None:
            why = "--raw continues plain text" if raw else "this model has no chat template"
            raise RequestError(f"--system needs a chat, but {why}: leave it out")
        return engine.generate(prompt, options)
    before = [Message("system", system)] if system is not None else []
    return engine.chat([*before, Message("user", prompt)], options)
