"""A model cut into stages gives the bits of the model on one stage: logits, tokens, results and state."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from strata.engine.chain import StageChain
from strata.engine.stage import RowsPart, Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_programs import Variant
from strata.errors import DeviceLostError, EngineError
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from tests.engine.chained_stages import (
    BUCKETS,
    MOST,
    SIZES,
    begin_replies,
    chain_model,
    chain_of,
    every_window,
    next_tokens,
    parts_of,
    states_of,
    tokens_of,
)
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.stages import POCKET, described, stage_engine, stage_model
from tests.engine.test_device_windows import requests
from tests.random_text import token_ids_of

CUT = [
    *(("qwen4_exp", cuts) for cuts in ((1, 3), (1, 2, 3))),
    *(("qwen3_5_moe", cuts) for cuts in ((3,), (1, 2))),
    ("qwen3_next", (2,)),
    ("qwen3_moe", (1,)),
    ("llama", (1,)),
]
every_cut = pytest.mark.parametrize(("name", "cuts"), CUT, ids=[f"{name}-{cuts}" for name, cuts in CUT])
SERVED = [("qwen4_exp", (1, 3)), ("llama", (1,))]
every_served = pytest.mark.parametrize(("name", "cuts"), SERVED, ids=[f"{name}-{cuts}" for name, cuts in SERVED])


@every_cut
def test_windows_and_state_are_those_of_one_stage(name: str, cuts: tuple[int, ...]) -> None:
    """Chosen by the device, with drafts that stand and that do not, and by the host."""
    right, windows, states = on_one_stage(name)
    chain = chain_of(parts_of(name, cuts), SIZES, BUCKETS)
    found = every_window(chain, chain.run, right)
    assert [len(tokens_of(chain, words)[1]) for words in found[:5]] == [2, 1, 3, 1, 1]
    assert all(torch.equal(one, other) for one, other in zip(found, windows, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(states_of(chain.stages), states, strict=True))


@cache
def on_one_stage(name: str) -> tuple[list[int], list[torch.Tensor], list[torch.Tensor]]:
    """What slot 0 gets next, every window's results and logits, and the state behind them."""
    scout, alone = (Stage(described(name)[1], SIZES, BUCKETS) for _ in range(2))
    begin_replies(scout, scout.run)
    right = next_tokens(scout, scout.run)
    return right, every_window(alone, alone.run, right), states_of([alone])


def test_a_part_has_the_state_of_its_own_layers_and_an_end_of_the_model_where_it_is_one() -> None:
    first, middle, last = parts_of("qwen4_exp", (1, 3))
    assert [len(part.layers) for part in (first, middle, last)] == [1, 2, 1]
    assert [part.sizes.delta_layers for part in (first, middle, last)] == [1, 2, 0]
    assert [part.sizes.attention_layers for part in (first, middle, last)] == [0, 0, 1]
    assert [part.sizes.ngram_layers for part in (first, middle, last)] == [1, 1, 0]
    assert [part.sizes.history_rows > 0 for part in (first, middle, last)] == [True, True, False]
    assert [part.is_first for part in (first, middle, last)] == [True, False, False]
    assert [part.is_last for part in (first, middle, last)] == [False, False, True]
    chain = chain_of((first, middle, last), StageSizes(1, 64), (1,))
    assert [Variant.TAKE in stage.variants for stage in chain.stages] == [True, True, False]
    assert [Variant.UNFILTERED_WINDOW in stage.variants for stage in chain.stages] == [False, False, True]
    whole = sum(tensor.nbytes for tensor in Stage(described("qwen4_exp")[1], StageSizes(1, 64), (1,)).state.tensors)
    parts = sum(tensor.nbytes for stage in chain.stages for tensor in stage.state.tensors)
    assert parts == whole + chain.stages[1].state.history.nbytes


def test_cells_in_main_memory_belong_to_the_stages_that_have_attention() -> None:
    right, windows, _ = on_one_stage("qwen4_exp")
    chain = chain_of(parts_of("qwen4_exp", (1, 3)), replace(SIZES, kv_resident=128), BUCKETS)
    assert [stage.state.pools is None for stage in chain.stages] == [True, True, False]
    assert chain.most_rows == chain.stages[2].most_rows == MOST
    found = every_window(chain, chain.run, right)
    assert all(torch.equal(one, other) for one, other in zip(found, windows, strict=True))


@pytest.mark.parametrize(("name", "cuts", "groups"), [("qwen4_exp", (1, 3), 2), ("llama", (1,), 1), ("llama", (1,), 2)])
def test_replies_are_those_of_one_stage(name: str, cuts: tuple[int, ...], groups: int) -> None:
    """By the device one window ahead, by the host, in company, with a fork; then a kept conversation's next turn."""
    wanted = replies_of(stage_model(name, 3))
    assert [len(reply) for reply in wanted[:2]] == [9, 12]
    model = chain_model(name, cuts, 3, groups=groups)
    assert replies_of(model) == wanted
    windows = [int(group.stage.results.words[0]) for group in model.groups]
    assert len(windows) == groups and min(windows) > 5, "each group had windows of its own"


def replies_of(model: StageModel) -> list[list[int]]:
    """To several requests at once, and to one that goes on behind the second of them."""
    served, asked = Served(stage_engine(model, is_ahead=True), 3), requests()
    limits = Limits.of(SETTINGS, 3, served.engine.chunk_rows, groups=len(model.groups))
    served.scheduler = Scheduler(served.engine, limits)
    for number, request in enumerate(asked):
        served.submit(number, request)
    served.finish()
    first = served.replies[1]
    last = served.ask(ask([*asked[1].prompt, *first, 5, 6], 6))
    assert served.ends[max(served.ends)].usage.cached_tokens == len(asked[1].prompt) + len(first) - 1
    return [*(served.replies[number] for number in range(len(asked))), last]


def test_the_shipped_model_in_two_stages() -> None:
    prompt = token_ids_of(9)
    wanted = Served(stage_engine(stage_model(POCKET, 1), is_ahead=True), 1).ask(ask(prompt, 5))
    layers = len(described(POCKET)[0].layers)
    assert Served(stage_engine(chain_model(POCKET, (layers // 2,), 1), is_ahead=True), 1).ask(ask(prompt, 5)) == wanted


@every_served
def test_slots_go_back_and_fork_on_every_stage(name: str, cuts: tuple[int, ...]) -> None:
    """Points in main memory, marks on the device, and a fork of each."""
    model = chain_model(name, cuts, 3)
    state = model.new_state()
    text = token_ids_of(12)

    def step(state: Any, token: int) -> torch.Tensor:
        chain = model.stage
        chain.set_rows(1, [RowsPart(state.index, state.position, [token])])
        model.run(Variant.FORWARD, 1)
        logits = chain.logits_on_host(1, 0, 1)
        chain.set_accepted([1])
        model.run(Variant.COMMIT, 1)
        state.position += 1
        return logits

    for token in text[:4]:
        step(state, token)
    point = state.take_checkpoint(is_mark=False)
    for token in text[4:8]:
        step(state, token)
    mark = state.take_checkpoint(is_mark=True)
    wanted = [step(state, token) for token in text[8:]]
    assert (point.bytes_used() > 0, mark.bytes_used()) == (name != "llama", 0)
    forks = [state.fork(mark), state.fork(point)]
    assert [each.position for each in forks] == [8, 4]
    for token in text[4:8]:
        step(forks[1], token)
    state.go_back(mark)
    for each in (state, *forks):
        assert all(torch.equal(step(each, token), logits) for token, logits in zip(text[8:], wanted, strict=True))


def test_points_have_room_on_every_stage_until_nobody_holds_them() -> None:
    slots = chain_model("qwen4_exp", (2,)).slots
    slots.make_room(3, None)
    assert slots.free_points == 3
    held = [slots.room_for_copy(0) for _ in range(2)]
    assert slots.free_points == 1
    assert slots.point_bytes == sum(keeper.point_bytes for keeper in slots.keepers) > held[0].bytes_used() - 1
    del held[0]
    assert slots.free_points == 2


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (EngineError("no numbers"), (EngineError, "no numbers")),
        (RuntimeError("CUDA error: an illegal memory access\nmore"), (DeviceLostError, "GPU failed while it computed")),
        (torch.OutOfMemoryError("CUDA out of memory"), (EngineError, "ran out of memory")),
    ],
    ids=["engine", "device", "memory"],
)
def test_what_fails_on_a_stage_names_it(failure: Exception, told: tuple[type[EngineError], str]) -> None:
    stages = chain_of(parts_of("llama", (1,)), StageSizes(1, 64), (1,)).stages

    def failing(variant: Variant, bucket: int) -> None:
        raise failure

    chain = StageChain.of(stages, [stages[0].run, failing])
    kind, words = told
    with pytest.raises(kind, match=rf"stage 2 of 2 \(cpu\).*{words}"):
        chain.run(Variant.FORWARD, 1)
