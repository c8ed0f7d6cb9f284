"""Reads that give way, and reads over two stages of one card: `python -m tests.gpu.reading --only aside chain`.

Tiny models; every read must give the bits that it gives alone, on one stage. Knows devices; no test of its own.
"""

from collections.abc import Callable, Sequence

import torch

from strata.engine.chain import StageChain
from strata.engine.chunk_loading import make_chunks
from strata.engine.chunk_reads import ChunkReads
from strata.engine.hand_off import Way, hand_off_between
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.experts.host_memory import Pinning
from strata.models.base import LogitRows, Reading, Segment
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.layer_split import LayerSplit
from tests.engine.tiered_stages import built
from tests.random_text import text_of

LONG, SHORT, STREAM, MORE = 200, 130, 30, 3
CAPACITY, CONTEXT, SLOTS = 256, 512, 3
RUN_CAPACITY = 64  # of a chunk of a run
Found = tuple[torch.Tensor, torch.Tensor]  # the last row's logits, and those of the next rows, decoded


def begin(model: StageModel, rows: int, marks: Sequence[int] = ()) -> tuple[StageSlot, Reading]:
    state = model.new_state()
    return state, model.begin_read(Segment(state, text_of(rows, rows)), LogitRows.LAST, marks)


def finish(model: StageModel, state: StageSlot, reading: Reading) -> Found:
    """The slot is free for others."""
    while not reading.advance():
        pass
    logits = reading.finish().logits
    return logits, decoded(model, state)


def decoded(model: StageModel, state: StageSlot) -> torch.Tensor:
    """Logits of a few more rows, which all of the state has a part in; then the slot is free for others."""
    rows = []
    for token in text_of(MORE, 9).split(1):
        window = model.window([Segment(state, token)])
        model.commit(window, [1])
        rows.append(window.output.logits)
    model.release(state)
    return torch.cat(rows)


def alone(model: StageModel, rows: int) -> Found:
    return finish(model, *begin(model, rows))


def are_equal(one: Found, other: Found) -> bool:
    return all(map(torch.equal, one, other))


def give_way(model: StageModel, steps: int, wanted: tuple[Found, Found]) -> bool:
    """A long read gives way behind so many steps, and once more, with windows in between; whether it was so long."""
    stream = model.new_state()
    model.read([Segment(stream, text_of(STREAM, 4))])
    state, reading = begin(model, LONG)
    is_long = not any(reading.advance() for _ in range(steps))
    other, beside = begin(model, SHORT)
    while not beside.advance():
        model.commit(model.window([Segment(stream, text_of(1, 5))]), [1])
    beside.finish()
    assert torch.equal(decoded(model, other), wanted[1][1]), f"the read that passed behind step {steps} differs"
    reading.advance()
    model.release(stream)
    assert are_equal(alone(model, SHORT), wanted[1]), f"the second read behind step {steps} differs"
    assert are_equal(finish(model, state, reading), wanted[0]), f"the read that gave way behind step {steps} differs"
    return is_long


class AsideChecks:
    """Chunks that are set aside, of one model on one device."""

    def __init__(self, model: Callable[[ReadSteps], StageModel]) -> None:
        """model: with SLOTS slots and chunks of CAPACITY rows, all experts on the device."""
        self._model = model

    def gives_way(self) -> str:
        """Behind steps of a layer and of a tile."""
        told = []
        for by_tiles in (False, True):
            model, steps = self._model(ReadSteps(by_tiles=by_tiles)), 0
            wanted = alone(model, LONG), alone(model, SHORT)
            assert model.reads is not None
            model.reads.make_room(1, Pinning.cuda() if model.stage.device.type == "cuda" else None)
            while give_way(model, steps, wanted):
                steps += 1
            told.append(steps)
        return f"behind each of {told[0]} steps of a layer and {told[1]} of a tile all bits are the same"

    def given_up(self) -> str:
        """Either of two reads, and both."""
        model = self._model(ReadSteps())
        wanted, whole = alone(model, SHORT), alone(model, LONG)
        for number in range(40):
            (state, reading), steps = begin(model, LONG), number % 4
            for _ in range(steps):
                reading.advance()
            other, beside = begin(model, SHORT)
            for _ in range(1 + number % 3):
                beside.advance()
            if number % 2:
                reading.cancel()
                model.release(state)
                assert are_equal(finish(model, other, beside), wanted), f"the read beside a cancelled one, {number}"
            else:
                beside.cancel()
                model.release(other)
                assert are_equal(finish(model, state, reading), whole), f"the read behind a cancelled one, {number}"
        return "40 reads were given up, set aside or running, and those beside them have their bits"


class ChainChecks:
    """Two stages of one model on one card."""

    def __init__(self, name: str, choice: str, device: torch.device, single: Callable[[ReadSteps], StageModel]) -> None:
        """single: as for `AsideChecks`."""
        self._name, self._choice, self._device = name, choice, device
        model = single(ReadSteps())
        self._wanted = alone(model, LONG), alone(model, SHORT)

    def runs(self) -> str:
        """Over every way that a hand-off has, in steps of layers and tiles."""
        ways = (None, Way.PEER, Way.PINNED) if self._device.type == "cuda" else (None,)
        for way in ways:
            for by_tiles in (False, True):
                model = self._chain(way, by_tiles=by_tiles)
                for rows, wanted in zip((LONG, SHORT), self._wanted, strict=True):
                    assert are_equal(alone(model, rows), wanted), f"{rows} rows by {way}, by tiles: {by_tiles}"
        return f"chunks of {RUN_CAPACITY} rows over two stages have the bits of one, by {len(ways)} ways"

    def gives_way(self) -> str:
        """With chunks on both stages."""
        model, steps = self._chain(Way.PEER if self._device.type == "cuda" else None), 0
        while give_way(model, steps, self._wanted):
            steps += 2
        return f"behind every other one of {steps} steps all bits are the same"

    def given_up(self) -> str:
        """At any step, also between two stages; then the slot is read into again."""
        model = self._chain(None)
        for steps in range(0, 20, 2):
            state, reading = begin(model, LONG, marks=[64])
            for _ in range(steps):
                reading.advance()
            reading.cancel()
            model.release(state)
            assert are_equal(alone(model, SHORT), self._wanted[1]), f"the read behind one cancelled at step {steps}"
        return "10 runs were given up, and what is read behind them has its bits"

    def _chain(self, way: Way | None, *, by_tiles: bool = False) -> StageModel:
        made = built(self._name, self._choice, self._device)[0]
        split = LayerSplit.of(len(made.layers), (len(made.layers) // 2,))
        parts = describe_parts(made, split, [StagePlace(self._device)] * 2)
        stages = [Stage(part, StageSizes(SLOTS, CONTEXT), (1, 32)) for part in parts]
        chain = StageChain.of(stages, [stage.run for stage in stages])
        first, second = (make_chunks(stage, RUN_CAPACITY) for stage in stages)
        steps = ReadSteps(by_tiles=by_tiles)
        model = StageModel(chain, chain.run, made.config, made.experts_per_row, first, steps, other_chunks=(second,))
        if way is not None:
            assert isinstance(model.reads, ChunkReads)
            model.reads.line[1].hand_off = hand_off_between(self._device, self._device, way)
        return model
