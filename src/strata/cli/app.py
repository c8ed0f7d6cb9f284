"""The command `strata`: which commands exist, and how every failure becomes one line and an exit code.

Knows no command from inside; each is imported when it is called, so that `--help` loads no torch.
"""

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from cyclopts import App, CoercionError, CycloptsError, UnusedCliTokensError

from strata import __version__
from strata.cli.console import write_line
from strata.cli.exit_codes import EXIT_ENGINE_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USER_MISTAKE
from strata.errors import EngineError, StrataError
from strata.settings import is_debugging

COMMANDS = {
    "serve": ("strata.cli.serve:serve", "Answer clients of the OpenAI and Anthropic APIs over HTTP."),
    "generate": ("strata.cli.generate:generate", "Answer one prompt, or continue a text."),
    "chat": ("strata.cli.chat:chat", "Talk with a model."),
    "inspect": ("strata.cli.inspect:inspect", "Say what a model is, what it needs and whether this PC can run it."),
    "doctor": ("strata.cli.doctor:doctor", "Measure this PC and say what strata would do here."),
    "convert": ("strata.cli.convert:convert", "Write a model directory as a GGUF file."),
    "synth": ("strata.cli.synth:synth", "Write a model of random weights, of any family and size."),
    "kernels": ("strata.cli.kernels:kernels", "Say which kernels are compiled for the card, and compile a model's."),
    "trace": ("strata.cli.trace:app", "Record which experts a model chooses; replay what a cache would have found."),
    "simulate": ("strata.cli.simulate:simulate", "Say how prompts would join running replies on a machine not here."),
    "bench": ("strata.cli.bench:app", "Measure: beside llama.cpp on the same file."),
}


def build_app() -> App:
    """The command line's shape; commands are named here and loaded when they are called."""
    app = App(
        name="strata",
        help="Run a Mixture-of-Experts language model that is larger than the graphics card.",
        version=__version__,
        help_epilogue="Without --model, commands use the small model that ships with strata.",
        suppress_keyboard_interrupt=False,
    )
    for name, (target, help_line) in COMMANDS.items():
        app.command(target, name=name, help=help_line)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code: 0 done, 1 the engine failed, 2 a mistake, 130 Ctrl-C."""
    try:
        code = build_app()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except UnusedCliTokensError as mistake:
        unused = " ".join(mistake.unused_tokens or ())
        return _report(
            f"nothing takes {unused!r}: text of several words stands in quotes (`strata --help` shows what there is)",
            EXIT_USER_MISTAKE,
        )
    except CycloptsError as mistake:
        return _report(f"{_named(mistake)} (`strata --help` shows what there is)", EXIT_USER_MISTAKE)
    except EngineError as failure:
        return _report(str(failure), EXIT_ENGINE_FAILED)
    except StrataError as mistake:
        return _report(str(mistake), EXIT_USER_MISTAKE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):  # rich makes a SystemExit of it
        # Whoever read our output has left; there is nobody to tell. The interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as failure:
        where = f": {failure.filename}" if failure.filename else ""
        return _report(f"the system refused: {failure.strerror or failure}{where}", EXIT_ENGINE_FAILED)
    except MemoryError:
        return _report("out of memory; `strata inspect` says what a model needs", EXIT_ENGINE_FAILED)
    except Exception as bug:
        return _report(
            f"this is a bug in strata: {type(bug).__name__}: {bug} (STRATA_DEBUG=1 shows where)", EXIT_ENGINE_FAILED
        )


def load_command() -> None:
    """Import the module of the command that is called; what is wrong with it is told when the command runs."""
    for name in sys.argv[1:2]:
        if name in COMMANDS:
            with contextlib.suppress(Exception):
                import_module(COMMANDS[name][0].partition(":")[0])


def main() -> None:
    """Run the process's own command line and end with its exit code."""
    if sys.stdout is None:
        sys.exit(_report("standard output is closed: there is nowhere to write to", EXIT_USER_MISTAKE))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no such letter ends no reply
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C while the interpreter tidies up changes nothing
    sys.exit(code)


def _named(mistake: CycloptsError) -> str:
    """The parser's sentence; it names flags in it, but no argument that has none."""
    bare = isinstance(mistake, CoercionError) and mistake.msg and mistake.token and mistake.token.keyword is None
    return f"{mistake.argument.name.lstrip('-').upper()}: {mistake}" if bare and mistake.argument else str(mistake)


def _report(sentence: str, code: int) -> int:
    if is_debugging():
        traceback.print_exc()
    write_line("error: " + " ".join(sentence.splitlines()))
    return code
