"""What the engine's process is made of: a scheduler under the settings it is sent, over the model it is told of."""

import gc
import logging

import pytest

from strata.engine.messages import Load
from strata.engine.request import TokenRequest
from strata.engine_process import load_loop
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings


def test_pieces_are_told_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("strata.scheduler")
    before = log.level, list(log.handlers)
    try:
        settings = EngineSettings(device="cpu", threads=1, slots=1, chunk_rows=64, piped_read_piece=65)
        loop, facts = load_loop(Load(None, settings), lambda what, done, total: None)
        loop.submit(1, TokenRequest(tuple(range(300, 600)), SamplingOptions(max_tokens=1)))
        while loop.has_work:
            loop.turn()
    finally:
        gc.unfreeze()
        log.level, log.handlers = before
    assert facts.slots == 1
    told = [
        line for line in capfd.readouterr().err.splitlines() if line.startswith("strata.scheduler: run in slot 0: ")
    ]
    assert [line.split()[5] for line in told] == ["128", "128", "44"]
