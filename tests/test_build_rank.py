"""A process among those of a model's stages: its device, what it offers, and settings that do not go with it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from strata import build_rank
from strata.build_rank import OpenedRank, lead_ranks, rank_of
from strata.engine.remote_meeting import agreed_budgets
from strata.engine.remote_ranks import Ranks
from strata.errors import SettingsError
from strata.hardware import GpuFacts
from strata.settings import EngineSettings
from strata.weights.opening import open_model

SETTINGS = EngineSettings(stages=True, device="cpu", slots=2, context=256, threads=1)


def ranks(rank: int) -> Ranks:
    return Ranks(rank, 2, rank, "here", 29500, is_hosted=True)


def opened_rank(model: Path, rank: int, **changes: Any) -> OpenedRank:
    return rank_of(open_model(model, "none"), dataclasses.replace(SETTINGS, **changes), ranks(rank))


def test_every_process_comes_to_the_same_plan(tiny_model: Path) -> None:
    """Of the split that is found, and of the slots that fit, whatever each process has by itself."""
    opened = [opened_rank(tiny_model, rank, slots=None) for rank in range(2)]
    budgets = agreed_budgets([each.offer for each in opened])
    first = opened[0].plan(budgets)
    second = opened[1].plan(budgets, first.split.cuts)
    assert first == second
    assert first.refusal is None
    assert first.split.stages == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"devices": "cpu", "device": "auto"}, "cpu are 1, and torchrun started 2 processes: name one for each"),
        ({"devices": "cpu,cuda:0", "device": "auto"}, "setting devices: cuda:0 is not there"),
        (
            {"layer_split": "1,2"},
            "torchrun started 2 processes: give 1 number, or --nproc-per-node 3",
        ),
        ({"device": "cuda"}, "rank 1 needs card 1 of its host, and there is none: "),
    ],
)
def test_settings_that_do_not_go_with_stages_are_refused(
    tiny_model: Path, changes: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        opened_rank(tiny_model, 1, **changes)


def test_a_process_beyond_the_cards_of_its_host_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = GpuFacts("a card", 2**33, 2**33, (9, 0))
    monkeypatch.setattr(build_rank, "read_gpus", lambda: [card])
    with pytest.raises(SettingsError, match="rank 1 needs card 1 of its host, and there is none: this host has 1"):
        opened_rank(tiny_model, 1, device="auto")


def test_only_the_first_process_loads_the_model(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    monkeypatch.setattr(build_rank, "torchrun_variables", lambda: variables)
    with pytest.raises(SettingsError, match="rank 1 has a stage of its own"):
        lead_ranks(open_model(tiny_model, "none"), SETTINGS, None)
