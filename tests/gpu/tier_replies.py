"""Replies of whole engines whose experts lie in tiers, token for token those of an engine with all of them on the card.

Knows engines and settings; a check returns a line, or raises AssertionError.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from strata.build import choose_device, compile_request, load_model
from strata.engine.compile_share import CompileRequest, compile_share
from strata.engine.graphs import WindowGraphs
from strata.engine.precompile import mark_compiled, marker_of
from strata.engine.stage_model import StageModel
from strata.models.device.description import DeviceModel
from strata.models_shipped import default_path
from strata.native.pool import Pool
from strata.settings import EngineSettings
from strata.weights.opening import open_model
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


def shipped_checks(folder: Path, kernels: Path) -> Iterator[tuple[str, Check]]:
    """The shipped model on a card through `build.load_model`, under one set of settings after another."""
    for values in SETTINGS:
        told = ", ".join(f"{name} {value}" for name, value in values.items())
        yield f"the shipped model, {told}", partial(check_shipped, values, folder, kernels)


def check_shipped(values: Mapping[str, Any], folder: Path, kernels: Path) -> str:
    """The replies are those of an engine with all experts on the card, and nothing is compiled for them."""
    from strata.kernels.compiled import noting_compilations

    wanted = _whole_replies(kernels)
    with noting_compilations() as noted:
        replies, experts = _shipped_replies({**values, "expert_profile": str(folder / "profile")}, kernels)
    assert replies == wanted, f"{replies} and not {wanted}"
    assert experts is not None, "all experts lie on the card"
    assert not noted.compiled, f"compiled when all was there: {sorted(set(noted.compiled))}"
    return f"{sum(map(len, replies.values()))} tokens are the same; experts ran {experts}"


def compile_shipped(share: int, shares: int, kernels: Path) -> str:
    """Compile a share of what engines of all these settings need, and say in the folder that all is there."""
    found = 0
    for request, marker in _compile_requests(kernels).items():
        compiled = compile_share(request, share, shares)
        assert not compiled.failures, f"{len(compiled.failures)} failed: {compiled.failures[0]}"
        found += compiled.kernels
        mark_compiled(marker)
    return f"{found} kernels are there"


def _compile_requests(kernels: Path) -> dict[CompileRequest, Path]:
    """Each once, and its marker."""
    directory, found = default_path(), {}
    for values in ({}, *SETTINGS):
        settings = _shipped_settings(values, kernels)
        source = open_model(directory, settings.quantize)
        card = choose_device(source, settings).card
        assert card is not None, "no card will do"
        request = compile_request(directory, settings, card)
        found[request] = marker_of(request, source, card.facts)
    return found


@cache
def _whole_replies(kernels: Path) -> dict[int, list[int]]:
    return _shipped_replies({}, kernels)[0]


def _shipped_replies(values: Mapping[str, Any], kernels: Path) -> tuple[dict[int, list[int]], Mapping[str, int] | None]:
    """Tokens, and where experts ran if they lie in tiers."""
    loaded = load_model(None, _shipped_settings(values, kernels))
    served = Served(loaded.engine, loaded.slots)
    for number, prompt in enumerate(PROMPTS):
        served.submit(number, ask(loaded.tokenizer.encode(prompt), TOKENS))
    with taking_no_memory(torch.device("cuda")):
        served.finish()
    errors = [end.error for end in served.ends.values() if end.error is not None]
    assert not errors, f"requests failed: {errors}; notices: {loaded.notices}"
    replies = served.replies
    experts = None if _tiers_of(loaded.engine.model) is None else loaded.engine.experts()
    del loaded, served
    gc.collect()
    return replies, experts


def _shipped_settings(values: Mapping[str, Any], kernels: Path) -> EngineSettings:
    """Prompts are read as windows, and so through tiers, too."""
    asked: dict[str, Any] = {"device": "cuda", "gpu_reads": "windows", "slots": SLOTS, "context": 512}
    return EngineSettings(**{**asked, "kernel_cache": str(kernels), **values})


def _replies(
    name: str, description: DeviceModel, device: torch.device, tokens: int, *, is_ahead: bool
) -> dict[int, list[int]]:
    built_model, stage = built(*parts_of(name), device)[0], new_stage(description)
    model = StageModel(stage, WindowGraphs(stage).run, built_model.config, built_model.experts_per_row)
    served = Served(stage_engine(model, is_ahead=is_ahead), SLOTS)
    for number, rows in enumerate((9, 40, 5)):
        served.submit(number, ask(token_ids_of(rows, number), tokens))
    with taking_no_memory(device):
        served.finish()
    return served.replies


@contextmanager
def taking_no_memory(device: torch.device) -> Iterator[None]:
    """Raises AssertionError if torch asks the card for memory inside: another program might have it by then."""

    def pieces() -> int:
        return int(torch.cuda.memory_stats(device)["segment.all.allocated"]) if device.type == "cuda" else 0

    before = pieces()
    yield
    assert pieces() == before, f"{pieces() - before} pieces of the card's memory were taken while replies ran"


def _tiers_of(model: object) -> object:
    assert isinstance(model, StageModel)
    return model.stage.stages[0].model.tiers
