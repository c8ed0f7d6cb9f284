"""Shows one reply while it is made: its text on stdout as it comes, ended cleanly by Ctrl-C.

Knows the events of a reply; does not know what was asked.
"""

import sys

from strata.api import Generation
from strata.cli.console import write_reply
from strata.cli.interrupt import ctrl_c_calls
from strata.types import Finished, TextPiece


def stream_reply(reply: Generation) -> tuple[str, Finished]:
    """Write the reply to stdout and end its last line; returns its text and how it ended."""
    pieces: list[str] = []
    finished = None
    with ctrl_c_calls(reply.cancel):
        for event in reply:
            if isinstance(event, TextPiece):
                pieces.append(event.text)
                write_reply(event.text)
            else:
                finished = event
    assert finished is not None, "a reply ends with Finished"
    text = "".join(pieces)
    if text and not text.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    return text, finished
