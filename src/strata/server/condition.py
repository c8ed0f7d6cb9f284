"""How the engine's process is doing and when it is started again: decided from what happened, without a clock.

Knows no process and no request.
"""

from dataclasses import dataclass
from enum import Enum

from strata.server.errors import ApiError


class Phase(Enum):
    """What the engine's process is doing."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Condition:
    """The phase, one sentence about it, and how far loading has come in the stage's own units."""

    phase: Phase
    sentence: str
    stage: str = ""
    done: int = 0
    total: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether requests are served now."""
        return self.phase is Phase.READY

    @property
    def retry_after(self) -> int | None:
        """Seconds after which asking again makes sense; None: never."""
        waits = {Phase.LOADING: 5, Phase.RESTARTING: 2, Phase.DRAINING: 30}
        return waits.get(self.phase)

    def refusal(self) -> ApiError:
        """What a request hears in this condition."""
        where = f" ({self.stage}: {self.done:,} of {self.total:,})" if self.stage and self.total else ""
        return ApiError(503, self.sentence + where, code=self.phase.value, retry_after=self.retry_after)


LOADING = Condition(Phase.LOADING, "the model is being loaded")
READY = Condition(Phase.READY, "ready")
DRAINING = Condition(Phase.DRAINING, "the server is stopping: it finishes what is running and takes nothing new")
STOPPED = Condition(Phase.STOPPED, "the server has stopped")


@dataclass(frozen=True)
class RestartPolicy:
    """How long to wait before the engine is started again, and when to give up."""

    first_seconds: float = 0.2
    most_seconds: float = 30.0
    most_load_failures: int = 3  # in a row: what dies three times while it loads dies a fourth time
    most_deaths: int = 30  # in a row without a finished reply between them

    def wait_seconds(self, load_failures: int, deaths: int) -> float | None:
        """After so many failures in a row, of which the last `load_failures` while loading; None: give up."""
        if load_failures >= self.most_load_failures or deaths >= self.most_deaths:
            return None
        return min(self.most_seconds, self.first_seconds * 2.0 ** max(0, deaths - 1))
