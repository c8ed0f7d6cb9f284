"""Tiny qwen4_exp whose n-gram tables stay in their files. Knows no test.

On CPU tensors, over the torch road, unless a card is named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from strata.engine.chunk_loading import make_chunks
from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.models.base import Segment
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.file_tables import FileTables, TableUse
from strata.models.device.held import FileTable
from strata.models.device.weights import DeviceWeights
from strata.models.families import family_of
from strata.models.needs import Part, part_of
from strata.weights.opening import open_model
from tests.engine.served import Served
from tests.engine.stages import stage_engine
from tests.gpu.tiny_models import directory

CPU = torch.device("cpu")
LIMIT_S = 20.0


@dataclass(frozen=True)
class Tabled:
    """A stage's model, and who answers it."""

    built: Any
    description: DeviceModel

    @property
    def tables(self) -> FileTables:
        """That its windows ask."""
        assert self.description.tables is not None
        return self.description.tables

    def model(self, slots: int = 2, chunk_rows: int = 0) -> StageModel:
        """Over a stage of its own with empty slots; chunk_rows: that prompts pass together, 0: they pass as windows."""
        stage = Stage(self.description, StageSizes(slots, 128 if not chunk_rows else 1024))
        chunks = make_chunks(stage, chunk_rows, None) if chunk_rows else None
        return StageModel(stage, WindowGraphs(stage).run, self.built.config, self.built.experts_per_row, chunks)

    def served(self, *, is_ahead: bool) -> Served:
        """A scheduler over that."""
        return Served(stage_engine(self.model(), is_ahead=is_ahead), 2)


@contextmanager
def tabled(
    path: Path,
    device: torch.device = CPU,
    *,
    limit_s: float = LIMIT_S,
    waits_in_stream: bool = False,
    groups: int = 1,
) -> Iterator[Tabled]:
    """Inside the block its tables answer."""
    built = _built(path, device, reads_tables=True)
    parts = [layer.ngram for layer in built.layers if layer.ngram is not None]
    assert parts and all(isinstance(part.table, FileTable) for part in parts)
    uses = [TableUse(part.table.stored, part.shape.heads) for part in parts]
    tables = FileTables(uses, device, limit_s, waits_in_stream=waits_in_stream, groups=groups)
    try:
        yield Tabled(built, describe(built, device, None, tables))
    finally:
        tables.close()


@cache
def in_memory(path: Path, device: torch.device = CPU) -> Tabled:
    """The same with its tables in memory."""
    built = _built(path, device, reads_tables=False)
    return Tabled(built, describe(built, device))


def logits_of(found: Tabled) -> torch.Tensor:
    """Of two reads, one in two windows, then of windows of two slots whose rows stand in part."""
    model = found.model()
    states = [model.new_state() for _ in range(2)]
    prompts = (torch.arange(34) * 7 % 96, torch.tensor([3, 5, 3]))
    made = [model.read([Segment(*each)]).logits for each in zip(states, prompts, strict=True)]
    for accepted in ([2, 0], [1, 3]):
        window = model.window([Segment(state, torch.tensor([3, 5, 3])) for state in states])
        made.append(window.output.logits)
        model.commit(window, accepted)
    return torch.cat(made)


def published() -> Path:
    """Two n-gram layers, each with a table of its own, in bf16."""
    return directory("qwen4_exp")


def _built(path: Path, device: torch.device, *, reads_tables: bool) -> Any:
    source = open_model(path, "code8" if path.is_dir() else "none")  # a quicker twin; tables stay as they are
    family = family_of(source.config)
    names = [name for name in source.names() if part_of(name) is not Part.MTP]
    weights = DeviceWeights(source, names, device, reads_tables=reads_tables)
    return family.build(family.parse_config(source.config), weights)
