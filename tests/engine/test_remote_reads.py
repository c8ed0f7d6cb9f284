"""Chunks of prompts pass a stage here and a served one as they pass a single stage, bit for bit, or are given up."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from strata.engine.chunk_loading import make_chunks
from strata.engine.graphs import WindowGraphs
from strata.engine.remote_chain import chain_ways, chunk_ways, ways_of
from strata.engine.remote_chunks import ServedChunks
from strata.engine.remote_copy import Channel, DistributedCopy
from strata.engine.remote_loading import LedModel
from strata.engine.remote_reads import LedReads
from strata.engine.stage import Stage
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.errors import EngineError
from strata.models.base import LogitRows, Reading, Segment
from tests.engine.stages import described
from tests.engine.threaded_stages import CHUNK, SIZES, threaded_model

NAME = "qwen4_exp"
TEXT = torch.arange(150) % 83 + 3


@pytest.fixture(scope="module")
def led() -> Iterator[LedModel]:
    with threaded_model(NAME) as model:
        yield model


@pytest.fixture(scope="module")
def whole() -> StageModel:
    model, description = described(NAME)
    stage = Stage(description, SIZES)
    run = WindowGraphs(stage).run
    return StageModel(stage, run, model.config, model.experts_per_row, make_chunks(stage, CHUNK))


def decoded(model: StageModel, state: StageSlot, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of windows of one row: what the state behind a read gives."""
    logits = []
    for token in tokens:
        window = model.window([Segment(state, torch.tensor([token]))])
        model.commit(window, [1])
        logits.append(window.output.logits)
    return torch.cat(logits)


def finished(reading: Reading) -> torch.Tensor:
    while not reading.advance():
        pass
    return reading.finish().logits


def read_in_turns(model: StageModel) -> list[torch.Tensor]:
    """Two prompts of several chunks, one of which leaves the stages to the other, and ways back from both."""
    one, other, third = (model.new_state() for _ in range(3))
    first = model.begin_read(Segment(one, TEXT), LogitRows.LAST, marks=(64,))
    for _ in range(2):
        assert not first.advance()
    second = model.begin_read(Segment(other, TEXT[:70] + 1), LogitRows.LAST)
    found = [finished(second), finished(first), decoded(model, one, [5, 6]), decoded(model, other, [7])]
    (mark,) = first.checkpoints
    one.go_back(mark)
    found.append(decoded(model, one, [8, 9]))
    found.append(model.read([Segment(third, TEXT[:90])], LogitRows.ALL).logits)
    for state in (one, other, third):
        model.release(state)
    return found


def test_prompts_pass_two_stages_as_they_pass_one(led: LedModel, whole: StageModel) -> None:
    assert isinstance(led.reads, LedReads)
    for found, wanted in zip(read_in_turns(led), read_in_turns(whole), strict=True):
        assert torch.equal(found, wanted)


def test_a_read_may_be_given_up_at_every_step(led: LedModel, whole: StageModel) -> None:
    """On each stage and between chunks; the stages are free for the next one, which gives the bits of a first read."""
    state, steps, is_through = led.new_state(), 0, False
    while not is_through:
        reading = led.begin_read(Segment(state, TEXT[:100]), LogitRows.LAST, marks=(64,))
        is_through = any(reading.advance() for _ in range(steps))
        reading.cancel()
        led.release(state)
        state, steps = led.new_state(), steps + 1
    half = len(described(NAME)[1].layers) // 2
    assert steps - 1 == 3 * half + 1  # two chunks, the second one a stage behind the first, and its logits
    alone = whole.new_state()
    found, wanted = (model.read([Segment(each, TEXT)]) for model, each in ((led, state), (whole, alone)))
    assert torch.equal(found.logits, wanted.logits)
    led.release(state)
    whole.release(alone)


def test_a_failure_on_the_other_stage_ends_that_read_alone(led: LedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ServedChunks) -> None:
        raise EngineError("expert 3 of layer 1 cannot be read")

    one, other = led.new_state(), led.new_state()
    failing = led.begin_read(Segment(one, TEXT[:64]))
    with monkeypatch.context() as patched:
        patched.setattr(ServedChunks, "step", fail)
        waiting = led.begin_read(Segment(other, TEXT[:64]))
        failing.advance()
        while led.reads.holder is failing:  # type: ignore[union-attr]
            assert not waiting.advance()  # it drives the other one, whose failure is not its own
        with pytest.raises(EngineError, match="stage of rank 1: expert 3"):
            failing.advance()
        failing.cancel()
    assert finished(waiting).shape[0] == 1
    for state in (one, other):
        led.release(state)


def test_wrong_reads_are_refused(led: LedModel) -> None:
    state = led.new_state()
    with pytest.raises(ValueError, match="mark 63 is no multiple of 64 inside rows 0 to 100"):
        led.begin_read(Segment(state, TEXT[:100]), marks=(63,))
    reading = led.begin_read(Segment(state, TEXT[:100]))
    with pytest.raises(ValueError, match="under way, or failed"):
        led.begin_read(Segment(state, TEXT[:100]))
    reading.cancel()
    led.release(state)


def test_ways_are_numbered_alike_everywhere() -> None:
    """Of three stages and two groups: streams forward, tokens back to all but the last, chunks forward."""
    ends = ways_of(3, 2)
    copies = [DistributedCopy(Channel(*each, number)) for number, each in enumerate(ends)]

    def of(found: Sequence[object]) -> list[tuple[int, int]]:
        return [ends[each.number] for each in found if isinstance(each, DistributedCopy)]

    forward, back = [(0, 1), (1, 2)], [(2, 0), (2, 1)]
    for group in range(2):
        ways = chain_ways(copies, 3, group)
        assert (of(ways.streams), of(ways.chosen)) == (forward, back)
    assert of(chunk_ways(copies, 3)) == forward
    used = [each.number for group in range(2) for each in chain_ways(copies, 3, group).streams]  # type: ignore[attr-defined]
    assert len({*used, *(each.number for each in chunk_ways(copies, 3))}) == 6
