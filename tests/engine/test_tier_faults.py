"""Faults around experts in tiers: files that fail while they are loaded, a card that runs out while windows run."""

import errno
import gc
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.cli.app import EXIT_USER_MISTAKE
from strata.engine import tier_loading
from strata.engine.device_windows import DeviceWindows
from strata.engine.engine import TokenEngine
from strata.engine.stage_loading import LoadedStage, ModelFiles, load_stage
from strata.engine.windows_ahead import WindowsAhead
from strata.errors import EngineError, WeightFileError
from strata.experts.cache import SwapRule
from strata.experts.host_memory import Pinning
from strata.experts.streams import PlainStreams
from strata.experts.swapping import Swapper
from strata.models.families import family_of
from strata.native import library
from strata.weights.opening import open_model
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.test_tier_loading import CPU, loaded, planned
from tests.gpu.tiny_models import directory

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


class Failing:
    """Something that refuses its next calls, as often as it is told."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.refusals = 0
        self.refused = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            self.refused += 1
            raise FULL
        return self.call(*arguments, **named)


@pytest.fixture(params=[True, False], ids=["ahead", "host"])
def is_ahead(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param


def served(found: LoadedStage, *, is_ahead: bool) -> Served:
    ahead = WindowsAhead(DeviceWindows(found.model)) if is_ahead else None
    return Served(TokenEngine(found.model, SETTINGS, ahead=ahead), slots=2)


@pytest.mark.parametrize("when", [0, 1, 4])
def test_a_card_that_runs_out_in_a_launch_ends_a_request_and_the_next_one_works(is_ahead: bool, when: int) -> None:
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.4))
    assert found.tiers is not None
    engine, request = served(found, is_ahead=is_ahead), ask([5, 7, 9], 12)
    wanted = engine.ask(request)
    found.model.run = launch = Failing(found.model.run)
    engine.submit(1, request)
    engine.turn()
    engine.turn()
    while len(engine.replies[1]) < 1 + when:
        engine.turn()
    launch.refusals = 1
    engine.finish()
    assert launch.refused == 1
    assert engine.ends[1].error == "out of memory while the engine ran"
    assert found.tiers.tiers.waiting_for().startswith("0 windows are in flight")
    assert engine.ask(request) == wanted


@pytest.mark.parametrize("step", ["copy_beside", "copy_behind", "hold_side"])
def test_a_card_that_runs_out_in_a_swap_ends_a_request_and_the_swap_is_taken_up_again(
    is_ahead: bool, step: str
) -> None:
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.4))
    assert found.tiers is not None
    store, tiers = found.tiers.store, found.tiers.tiers
    engine, request = served(found, is_ahead=is_ahead), ask([5, 7, 9], 30)
    wanted = engine.ask(request)
    streams = PlainStreams()
    refusing = Failing(getattr(streams, step))
    setattr(streams, step, refusing)
    swapper = Swapper(store, tiers, tiers.asked, streams, EAGER)
    tiers.follow(swapper.before_launch)
    refusing.refusals = 1
    engine.submit(1, request)
    engine.finish()
    assert refusing.refused == 1
    assert engine.ends[1].error == "out of memory while the engine ran"
    assert tiers.waiting_for().startswith("0 windows are in flight")
    before = swapper.swaps
    assert engine.ask(request) == wanted
    assert swapper.swaps > before
