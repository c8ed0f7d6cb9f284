"""Rows of a prompt that are no numbers end its request while it is read; nobody waits for the answer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from strata.engine.prompt_checks import ROOMS, PromptChecks
from strata.engine.stage_model import StageModel
from strata.errors import EngineError
from strata.models.base import LogitRows, Segment
from strata.models.device.reading.chunks import Chunk, ChunkMemory
from tests.engine.chunked_stages import chunked_model
from tests.engine.pretended_device import Device
from tests.engine.test_chain_reads import reading_chain
from tests.random_text import text_of

CPU = torch.device("cpu")
LONG = text_of(150)


def poison_last_layer_of(monkeypatch: pytest.MonkeyPatch, chunk_number: int) -> None:
    """Behind the last layer of one chunk the last row's streams hold a NaN."""
    inner, ended = Chunk.is_finite, list[int]()

    def poisoned(self: Chunk) -> torch.Tensor:
        ended.append(0)
        if len(ended) == chunk_number + 1:
            self._walk.streams[-1, 3] = torch.nan
        return inner(self)

    monkeypatch.setattr(Chunk, "is_finite", poisoned)


@pytest.mark.parametrize("make", [lambda: reading_chain("llama", (1,)), lambda: chunked_model("llama", capacity=64)])
def test_a_chunk_without_numbers_ends_the_run_with_one_of_its_next_steps(
    make: Callable[[], StageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    whole = model.read([Segment(model.new_state(), LONG)]).logits
    poison_last_layer_of(monkeypatch, 0)
    state = model.new_state()
    reading = model.begin_read(Segment(state, LONG))
    with pytest.raises(EngineError, match="the prompt"):
        while not reading.advance():
            assert state.position <= 64
    reading.cancel()
    model.release(state)
    assert torch.equal(model.read([Segment(model.new_state(), LONG)]).logits, whole)


def test_one_that_was_read_by_itself_is_told_with_the_next_one_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chunked_model("llama", slots=3, capacity=64)
    poison_last_layer_of(monkeypatch, 0)
    state, other = model.new_state(), model.new_state()
    model.read([Segment(state, LONG[:64])], LogitRows.NONE)
    model.read([Segment(other, LONG[:64])], LogitRows.NONE)
    model.read([Segment(other, LONG[64:])])
    reading = model.begin_read(Segment(state, LONG[64:]))
    with pytest.raises(EngineError, match="the prompt"):
        reading.advance()
    reading.cancel()


@pytest.mark.parametrize("addition", ["streams", "output"])
def test_streams_and_what_is_to_be_added_to_them_count(addition: str) -> None:
    model = chunked_model("qwen3_moe", capacity=64)
    assert isinstance(model.chunks, ChunkMemory)
    reading: Any = model.begin_read(Segment(model.new_state(), LONG[:64]), LogitRows.LAST)
    chunk = model.chunks._holder
    assert chunk is not None
    while not chunk.is_through:
        reading.advance()
    assert bool(chunk.is_finite())
    model.chunks.room.take(addition, 64, chunk._walk.model.hidden)[-1, 0] = torch.inf
    assert not bool(chunk.is_finite())
    reading.cancel()


class _State:
    """Stands for a slot."""

    position = 0


def test_answers_are_read_when_they_are_there_and_of_this_text_alone() -> None:
    device, state, bad = Device(), _State(), torch.tensor(False)
    checks: Any = PromptChecks(CPU, device.mark)
    device.work(1.0)
    checks.begin(state)
    checks.ask(state, 64, bad)
    checks.require(state)  # not there yet
    device.now = 2.0
    with pytest.raises(EngineError, match="the prompt"):
        checks.require(state)
    checks.require(state)
    checks.ask(state, 128, bad)
    state.position = 100  # it went back
    checks.begin(state)
    checks.require(state)
    device.work(5.0)
    checks.ask(state, 164, bad)
    other = _State()
    for stop in range(ROOMS):
        checks.ask(other, stop, torch.tensor(True))  # the last one waits for room
    assert device.now >= 7.0
    checks.require(other)
    with pytest.raises(EngineError, match="the prompt"):
        checks.require(state)
