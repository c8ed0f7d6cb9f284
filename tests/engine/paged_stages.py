"""A tiny model on stages that keep keys and values in main memory or on the device, and what is done in their slots.

For tests and for tests/gpu. A row chooses 6 blocks of 4 cells, from position 27 on.
"""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from strata.engine.chunk_loading import make_chunks, warm_up_chunks
from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.kernels.cell_pages import sides
from strata.models.base import LogitRows, Segment
from strata.models.device.description import AttentionMixer, DeviceModel
from strata.quant.cell_codes import CellKind
from strata.state.checkpoints import fork, go_back, take_checkpoint
from tests.engine.stages import CPU, described
from tests.random_text import text_of

FAMILY = "qwen4_exp"
LEAST = 32  # cells a slot
CONTEXT = 512


@cache
def attention_alone() -> tuple[Any, DeviceModel]:
    """The tiny model without its other layers: nothing else is looked at here, and all else takes time."""
    model, description = described(FAMILY)
    layers = tuple(layer for layer in description.layers if isinstance(layer.mixer, AttentionMixer))
    return model, replace(description, layers=layers)


def model_of(
    resident: int,
    kind: CellKind = CellKind.BF16,
    *,
    slots: int = 3,
    in_chunks: bool = True,
    device: torch.device = CPU,
) -> StageModel:
    """Over a stage of its own with empty slots, on a GPU all layers and graphs; resident 0: all cells lie there."""
    is_card = device.type == "cuda"
    model, description = described(FAMILY, device) if is_card else attention_alone()
    stage = Stage(description, StageSizes(slots, CONTEXT, kv_kind=kind, kv_resident=resident))
    run = WindowGraphs(stage).run
    chunks = make_chunks(stage, 64, None) if in_chunks else None
    if chunks is not None:
        warm_up_chunks(chunks)
    return StageModel(stage, run, model.config, model.experts_per_row, chunks)


class Story:
    """Slots that read, decode, take back, fork and give way to one another; all logits in order."""

    def __init__(self, model: StageModel) -> None:
        self.model = model
        self.logits: list[torch.Tensor] = []
        self._tokens = itertools.count(100)

    def _read(self, state: StageSlot, rows: int) -> None:
        text = text_of(rows, next(self._tokens))
        self.logits.append(self.model.read([Segment(state, text)], LogitRows.ALL).logits)

    def _window(self, *states: StageSlot, rows: int = 1, accepted: int = 1) -> None:
        window = self.model.window([Segment(state, text_of(rows, next(self._tokens))) for state in states])
        self.logits.append(window.output.logits)
        self.model.commit(window, [accepted] * len(states))

    def run(self) -> list[torch.Tensor]:
        """All of it; then also what three of the slots hold."""
        model = self.model
        first, second = model.new_state(), model.new_state()
        self._read(first, 70)
        self._read(second, 40)
        for _ in range(2):
            self._window(first, second)
        point = take_checkpoint(first)
        self._window(first, rows=2, accepted=1)
        self._window(first, second)
        go_back(first, point)
        self._window(second, first)
        third = fork(first, point)
        for _ in range(2):
            self._window(third, first, second)
        model.release(second)
        other = model.new_state()
        reading = model.begin_read(Segment(other, text_of(40, 7)), LogitRows.ALL)
        while not reading.advance():
            self._window(first, third)
        self.logits.append(reading.finish().logits)
        self._window(other, third)
        model.release(other)
        again = fork(first, point)  # where the other's blocks still have places
        self._window(again, third)
        saved = [model.stage.stages[0].state.save(state.index, state.position) for state in (first, third, again)]
        return [*self.logits, *(part.cpu() for each in saved for part in each.tensors)]


def assert_consistent(model: StageModel) -> None:
    """What lies in a pool is what main memory holds of the blocks that the table names."""
    state = model.stage.stages[0].state
    assert state.pools is not None
    model.stage.wait()
    for layer in range(state.sizes.attention_layers):
        cells, pages = state.attention_cells(layer), state.pools.layer(layer)
        resident = torch.nonzero(pages.table.view(-1) >= 0).flatten()
        places = pages.table.view(-1)[resident].long()
        assert len(resident) and torch.equal(pages.owner[places], resident.int())
        for stored, held in zip(sides(cells), sides(pages), strict=True):
            block = (-1, pages.ratio * stored[0, 0].numel())
            assert torch.equal(held.view(block)[places].cpu(), stored.view(block)[resident.cpu()]), "other bytes"
