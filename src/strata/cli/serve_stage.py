"""What `strata serve --stages` is in the processes that torchrun started beside the first: a stage and no server.

Knows torchrun's ranks; what a stage is, is `strata.stage_rank`.
"""

import os
import sys
from collections.abc import Callable

from strata.engine.remote_ranks import ranks_of
from strata.settings import EngineSettings, torchrun_variables


def serve_stage(model: str | None, settings: EngineSettings, tell: Callable[[str], None]) -> bool:
    """Compute this process' stage until its leader ends it; False at once for the first process, which serves.

    Raises SettingsError where torchrun did not start this process, and whatever ends a stage.
    """
    ranks = ranks_of(torchrun_variables())
    if ranks.rank == 0:
        return False
    from strata.stage_rank import LeaderGone, serve_rank

    try:
        serve_rank(model, settings, ranks, tell)
    except LeaderGone:
        tell(f"rank 0 is gone: stage {ranks.rank + 1} of {ranks.count} waits for another one")
        begin_again()
    return True


def begin_again() -> None:
    """This process from its start, under its number: nothing of what it was is left."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
