"""A process that torchrun started beside the first one is a stage, and begins again behind a leader that is gone."""

import os
import sys
from typing import Any

import pytest

from strata import stage_rank
from strata.cli import serve_stage
from strata.settings import EngineSettings


def test_it_begins_again_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: begun.append(arguments))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "strata", "serve", "--stages"])

    def gone(*_: Any) -> None:
        raise stage_rank.LeaderGone

    monkeypatch.setattr(stage_rank, "serve_rank", gone)
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    monkeypatch.setattr(serve_stage, "torchrun_variables", lambda: variables)
    assert serve_stage.serve_stage(None, EngineSettings(stages=True), lambda line: None)
    assert begun == [(sys.executable, [sys.executable, "-m", "strata", "serve", "--stages"])]
    variables["RANK"] = "0"
    assert not serve_stage.serve_stage(None, EngineSettings(stages=True), lambda line: None)
