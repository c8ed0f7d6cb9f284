"""A stage in a process of its own: what `strata serve --stages` is in every process of torchrun but the first.

Wires the line to the leader, the part of the model, and the loop that carries out calls. A leader that is gone ends it,
but for one that is started again: then this process begins again, too.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from strata.build_rank import open_rank
from strata.engine.failures import request_error
from strata.engine.remote_joining import join, leave
from strata.engine.remote_line import Line, LineLost
from strata.engine.remote_loading import load_following
from strata.engine.remote_meeting import follow
from strata.engine.remote_ranks import Ranks
from strata.engine.stage_calls import CALLS, CallFailed, End
from strata.engine.stage_process import serve_part
from strata.errors import EngineError, StrataError
from strata.settings import EngineSettings

GONE_SECONDS = 2.0  # in which the line shows that a failure was the leader's end
EXIT_TOLD = 130


class LeaderGone(Exception):
    """The leader ended without a word, and nobody asked this process to end."""


def serve_rank(model: str | None, settings: EngineSettings, ranks: Ranks, tell: Callable[[str], None]) -> None:
    """Compute this rank's stage until the leader ends it. Raises LeaderGone, or a StrataError that the leader knows.

    A signal does not end it while there is a leader, who may have replies to finish; a second one does.
    """
    joined = join(ranks, CALLS)
    (line,) = joined.lines
    is_told = _noting_signals()
    tell(f"stage {ranks.rank + 1} of {ranks.count} waits for rank 0 at {ranks.host}")
    try:
        reason = _serve(line, model, settings, ranks, tell)
    except (LineLost, StrataError) as failure:
        if not isinstance(failure, LineLost) and not line.is_lost(GONE_SECONDS):
            raise
        if is_told():
            raise EngineError("rank 0 is gone, and this stage was told to end") from failure
        raise LeaderGone from failure
    finally:
        leave(joined)
    if reason:
        raise EngineError(f"rank 0 ended: {reason}")


def _serve(line: Line, model: str | None, settings: EngineSettings, ranks: Ranks, tell: Callable[[str], None]) -> str:
    """Load what the leader says, and serve. A failure is told to the leader first."""
    try:
        opened = open_rank(None if model is None else Path(model), settings, ranks)
        meeting = follow(ranks, line, opened.offer, opened.plan)
        if isinstance(meeting, End):
            return meeting.reason
        part, loaded = load_following(opened.files, opened.card, meeting, opened.wishes, settings)
        line.send(loaded)
        tell(f"stage {ranks.rank + 1} of {ranks.count} is ready")
        return serve_part(line, part)
    except StrataError as failure:
        line.send(CallFailed(str(failure), is_users_mistake=not isinstance(failure, EngineError)))
        raise
    except Exception as failure:
        line.send(CallFailed(f"{type(failure).__name__}: {request_error(failure)}"))
        raise


def _noting_signals() -> Callable[[], bool]:
    """From now on the first Ctrl-C or SIGTERM is noted, the next one ends the process; returns whether one came."""
    came: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        if came:
            os._exit(EXIT_TOLD)
        came.append(signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return lambda: bool(came)
