"""The engine's process: `python -m strata.engine_process DESCRIPTOR`, started by `engine.client`, never by a user.

Wires what the process is made of: the model, the engine, the scheduler, and the loop behind the inherited socket.
"""

import gc
import logging
import signal
import socket
import sys
from pathlib import Path

from strata.build import load_model, model_facts
from strata.engine.messages import Load, ModelFacts
from strata.engine.process import Loop, serve
from strata.scheduler.due import Limits
from strata.scheduler.read_modes import ReadMode
from strata.scheduler.reads import LOG_NAME
from strata.scheduler.scheduler import Scheduler
from strata.types import ProgressCallback


def main() -> int:
    """Serve the parent that holds the other end of the socket; returns the exit code.

    Ctrl-C and a service manager's SIGTERM reach the whole group: they are the server's matter, which drains and then
    says stop.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return serve(socket.socket(fileno=int(sys.argv[1])), load_loop)


def load_loop(load: Load, on_progress: ProgressCallback) -> tuple[Loop, ModelFacts]:
    """Load the model and stand ready. Raises StrataError."""
    loaded = load_model(None if load.model is None else Path(load.model), load.settings, on_progress)
    loaded.engine.warm_up()
    limits = Limits.of(load.settings, loaded.slots, loaded.engine.chunk_rows, loaded.is_piped, loaded.groups)
    if limits.rule.mode is ReadMode.PIECES:
        _show_runs()
    loop, facts = Scheduler(loaded.engine, limits), model_facts(loaded, load.settings)
    # What is there now stays to the end: looking through it for garbage again and again stops everything for 70 ms.
    gc.collect()
    gc.freeze()
    return loop, facts


def _show_runs() -> None:
    """A line on stderr for every piece that is read; unlike warnings they are not shown by themselves."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    log = logging.getLogger(LOG_NAME)
    log.setLevel(logging.INFO)
    log.addHandler(shown)


if __name__ == "__main__":
    sys.exit(main())
