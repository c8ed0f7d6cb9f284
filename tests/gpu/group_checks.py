"""What must hold of two groups of slots on one device: the tokens of one group with every expert on the device.

Knows engines over models of random weights; knows no process. A check returns a line, or raises AssertionError.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from strata.engine.request import TokenRequest
from strata.engine.stage_model import StageModel
from strata.engine.tier_following import follow_windows
from strata.engine.tier_loading import LoadedTiers
from strata.models.device.description import DeviceModel
from strata.native.pool import Pool
from strata.settings import EngineSettings
from tests.engine.grouped_stages import grouped_served, swapping_beside
from tests.engine.served import Served, ask
from tests.engine.tiered_stages import Tiering, built
from tests.experts.busy_pool import slowed
from tests.gpu.tier_checks import Check, compiling_nothing
from tests.gpu.tier_models import PUBLISHED, InTiers, in_tiers, parts_of, whole
from tests.random_text import token_ids_of

GROUPS, SLOTS, BUCKETS = 2, 4, (1, 4, 32)
TOKENS, TOKENS_ON_CPU = 40, 6
REPEATS = 3  # of all requests: what two groups do at the same time is never the same twice


@dataclass(frozen=True)
class Case:
    """Where experts lie, and what happens meanwhile."""

    tiering: Tiering
    with_swaps: bool = False
    follows: bool = False  # as the engine does it: the share is measured where a card reads main memory
    is_slow: bool = False  # others use the pool too

    def __str__(self) -> str:
        told = f"cache {100 * self.tiering.seats:.0f} %, {self.tiering.in_place:g} in place"
        words = {", exclusive": self.tiering.is_exclusive, ", swaps": self.with_swaps, ", as the engine": self.follows}
        words |= {", slow pool": self.is_slow, ", the stream waits": self.tiering.waits_in_stream}
        return told + "".join(word for word, is_said in words.items() if is_said)


def _of(seats: float, in_place: float = 0.0, **more: bool) -> Tiering:
    return Tiering(seats, in_place, groups=GROUPS, **more)


CASES = (
    *(Case(_of(seats, share)) for seats in (0.0, 0.5) for share in (0.0, 0.3)),
    Case(_of(1.0)),
    Case(_of(0.0, waits_in_stream=True)),
    *(Case(_of(0.5, 0.3, waits_in_stream=waits), with_swaps=True) for waits in (False, True)),
    Case(_of(0.5, is_exclusive=True), with_swaps=True),
    Case(_of(0.5), follows=True),
    Case(_of(0.25), is_slow=True),
)


def checks_of(name: str, pool: Pool, device: torch.device) -> Iterator[tuple[str, Check]]:
    """Every case of one model, and groups where every expert has its place on the device."""
    yield "all experts on the device", partial(check_whole, name, device)
    for case in CASES:
        if name != PUBLISHED or not case.tiering.is_exclusive:  # whose memory is not
            yield str(case), partial(check_case, name, case, pool, device)


def check_whole(name: str, device: torch.device) -> str:
    """Without tiers."""
    served = _served(name, whole(name, device), GROUPS)
    return _check(served, name, device)


def check_case(name: str, case: Case, pool: Pool, device: torch.device) -> str:
    """With experts in tiers; every group has asked for some of its own, unless all have seats."""
    waits = case.tiering.waits_in_stream
    with ExitStack() as inside:
        found = inside.enter_context(in_tiers(name, case.tiering, pool, device, waits_in_stream=waits))
        served = _served(name, found.model, GROUPS)
        if case.is_slow:
            inside.enter_context(slowed(pool))
        swapper = None
        if case.with_swaps:
            swapper = inside.enter_context(swapping_beside(served, found.model, found.store))
        if case.follows:
            inside.callback(_follow(served, found, pool).close)
        told = _check(served, name, device)
        asked = [found.tiers._service.state(group).answered for group in range(GROUPS)]
        assert all(count > 0 for count in asked) == (case.tiering.seats < 1), f"requests of the groups: {asked}"
        assert swapper is None or swapper.swaps > 0, "no expert has changed its seat"
    return told + f", {asked} requests" + ("" if swapper is None else f", {swapper.swaps} swaps")


def _follow(served: Served, found: InTiers, pool: Pool) -> Any:
    model = served.engine.model
    assert isinstance(model, StageModel)
    stage = model.groups[0].stage.stages[0]
    streams = model.roads.beside_main(stage.device)
    return follow_windows(LoadedTiers(found.store, found.tiers, pool), stage, EngineSettings(), streams)


def _check(served: Served, name: str, device: torch.device) -> str:
    """The same tokens again and again, and nothing is compiled for them."""
    wanted = wanted_of(name, device)
    with compiling_nothing(device):
        for turn in range(1 if device.type == "cpu" else REPEATS):
            found = _replies(served, device, turn)
            wrong = [number for number, reply in enumerate(found) if reply != wanted[number]]
            assert not wrong, f"turn {turn + 1}: requests {wrong} of {len(found)} have other tokens"
    return f"{sum(map(len, wanted))} tokens are equal"


@cache
def wanted_of(name: str, device: torch.device) -> list[list[int]]:
    """Of one group, with every expert on the device."""
    return _replies(_served(name, whole(name, device), 1), device, 0)


def _served(name: str, description: DeviceModel, groups: int) -> Served:
    model: Any = SimpleNamespace(config=None, experts_per_row=1)
    if name != PUBLISHED:
        model = built(*parts_of(name), description.device)[0]
    return grouped_served(model, description, groups, SLOTS, buckets=BUCKETS)


def _replies(served: Served, device: torch.device, turn: int) -> list[list[int]]:
    """Of all requests, which come in another order each time."""
    requests = _requests(TOKENS_ON_CPU if device.type == "cpu" else TOKENS)
    order = [(turn + number) % len(requests) for number in range(len(requests))]
    for number in order:
        served.submit(1000 * turn + number, requests[number])
    served.finish()
    errors = [end.error for end in served.ends.values() if end.error is not None]
    assert not errors, f"requests failed: {errors}"
    return [served.replies[1000 * turn + number] for number in range(len(requests))]


def _requests(tokens: int) -> list[TokenRequest]:
    """More than there are slots: greedy, drawn, with stops, and one whose penalties only the host knows."""
    plain = [ask(token_ids_of(5 + 7 * number, number), tokens + 3 * number) for number in range(4)]
    drawn = ask(token_ids_of(33, 9), tokens, temperature=0.9, seed=11, top_p=0.9, top_k=40)
    penal = ask(token_ids_of(9, 10), tokens // 2, temperature=1.0, seed=7, frequency_penalty=0.5)
    stopped = replace(plain[0], stop_token_ids=frozenset(range(0, 96, 9)))
    return [*plain, drawn, penal, stopped]
