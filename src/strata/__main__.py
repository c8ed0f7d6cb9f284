"""The command `strata`, also as `python -m strata`: what happens before the first module of it is loaded.

Knows Ctrl-C and where the rest is.
"""

import signal


def main() -> None:
    """The entry point of `strata` and `python -m strata`.

    While modules load, Ctrl-C ends the process at once: nothing is there to clean up, and a KeyboardInterrupt would be
    a traceback, or be lost where a library's import catches it.
    """
    in_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us said otherwise
    if in_python:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from strata.cli import app

    app.load_command()
    if in_python:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app.main()


if __name__ == "__main__":
    main()
