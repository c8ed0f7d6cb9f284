"""Replies of whole engines whose experts lie in tiers, token for token those of an engine with all of them on the card.

Knows engines and settings; a check returns a line, or raises AssertionError.
"""

import gc
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from strata.build import load_model
from strata.engine.graphs import WindowGraphs
from strata.engine.stage_model import StageModel
from strata.models.device.description import DeviceModel
from strata.native.pool import Pool
from strata.settings import EngineSettings
from tests.engine.served import Served, ask
from tests.engine.stages import stage_engine
from tests.engine.tiered_stages import Tiering, built
from tests.gpu.tier_checks import Check, swapping
from tests.gpu.tier_models import in_tiers, new_stage, parts_of, whole
from tests.random_text import token_ids_of

SLOTS, TOKENS, TOKENS_ON_CPU = 2, 48, 6
PROMPTS = ("The harbour", "Once upon a time there was a", "1 + 1 =")
QUARTER_GIB = 0.0024  # of the 10 MB of experts of the shipped model
SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"cache_gib": 0.0},
    {"cache_gib": QUARTER_GIB},
    {"cache_gib": QUARTER_GIB, "resident": True},
    {"cache_gib": QUARTER_GIB, "pcie_share": 0.0, "expert_swaps": False},
    {"cache_gib": 3 * QUARTER_GIB, "pcie_share": 1.0},
    {"cache_gib": 0.0, "pcie_share": 0.3, "window_sampling": "host"},
    {"cache_gib": QUARTER_GIB, "pcie_share": 0.3, "expert_wait": "stream"},
)


def checks_of(name: str, pool: Pool, device: torch.device) -> Iterator[tuple[str, Check]]:
    """Replies of one tiny model, some of them under way at once, while seats change."""
    for is_ahead in (True, False):
        yield (
            f"replies, {'one window ahead' if is_ahead else 'chosen here'}",
            partial(check_replies, name, pool, device, is_ahead=is_ahead),
        )


def check_replies(name: str, pool: Pool, device: torch.device, *, is_ahead: bool) -> str:
    """Through scheduler and engine, with eager swaps."""
    tokens = TOKENS_ON_CPU if device.type == "cpu" else TOKENS
    wanted = _replies(name, whole(name, device), device, tokens, is_ahead=False)
    with in_tiers(name, Tiering(0.25, 0.3), pool, device) as found, swapping(found, device) as swapper:
        replies = _replies(name, found.model, device, tokens, is_ahead=is_ahead)
        swaps = swapper.swaps
    assert replies == wanted, f"{replies} and not {wanted}"
    return f"{sum(map(len, wanted.values()))} tokens of {len(wanted)} replies are the same, {swaps} swaps"


def shipped_checks(folder: Path) -> Iterator[tuple[str, Check]]:
    """The shipped model on a card through `build.load_model`, under one set of settings after another."""
    wanted: dict[int, list[int]] = {}
    for values in ({}, *SETTINGS):
        told = ", ".join(f"{name} {value}" for name, value in values.items()) or "all on the card"
        yield f"the shipped model, {told}", partial(check_shipped, values, wanted, folder)


def check_shipped(values: Mapping[str, Any], wanted: dict[int, list[int]], folder: Path) -> str:
    """`wanted` is filled by the first of them. Kernels and the profile lie in `folder`."""
    files = {"kernel_cache": str(folder / "kernels"), "expert_profile": str(folder / "profile")}
    asked: dict[str, Any] = {"device": "cuda", "slots": SLOTS, "context": 512, **files, **values}
    loaded = load_model(None, EngineSettings(**asked))
    assert ("cache_gib" in values) == (_tiers_of(loaded.engine.model) is not None), f"notices: {loaded.notices}"
    served = Served(loaded.engine, loaded.slots)
    for number, prompt in enumerate(PROMPTS):
        served.submit(number, ask(loaded.tokenizer.encode(prompt), TOKENS))
    served.finish()
    errors = [end.error for end in served.ends.values() if end.error is not None]
    assert not errors, f"requests failed: {errors}"
    experts = loaded.engine.experts()
    replies = served.replies
    if not wanted:
        wanted.update(replies)
    del loaded, served
    gc.collect()
    assert replies == wanted, f"{replies} and not {wanted}"
    return f"{sum(map(len, replies.values()))} tokens are the same; experts ran {experts}"


def _replies(
    name: str, description: DeviceModel, device: torch.device, tokens: int, *, is_ahead: bool
) -> dict[int, list[int]]:
    built_model, stage = built(*parts_of(name), device)[0], new_stage(description)
    model = StageModel(stage, WindowGraphs(stage).run, built_model.config, built_model.experts_per_row)
    served = Served(stage_engine(model, is_ahead=is_ahead), SLOTS)
    for number, rows in enumerate((9, 40, 5)):
        served.submit(number, ask(token_ids_of(rows, number), tokens))
    served.finish()
    return served.replies


def _tiers_of(model: object) -> object:
    assert isinstance(model, StageModel)
    return model.stage.model.tiers
