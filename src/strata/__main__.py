"""The command `strata`, also as `python -m strata`: what happens while its modules load.

Knows Ctrl-C and where the rest is.
"""

import os
import signal
import sys
from types import FrameType

from strata.cli.exit_codes import EXIT_INTERRUPTED


def main() -> None:
    """The entry point of `strata` and `python -m strata`.

    While modules load, Ctrl-C ends the process at once with the exit code that it has later: nothing is there to clean
    up, and a KeyboardInterrupt would be a traceback, or be lost where a library's import catches it.
    """
    in_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us said otherwise
    if in_python:
        signal.signal(signal.SIGINT, _leave)
    from strata.cli import app

    app.load_command()
    try:
        if in_python:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app.main()
    except KeyboardInterrupt:  # between two lines, where no command has begun
        sys.exit(EXIT_INTERRUPTED)


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
