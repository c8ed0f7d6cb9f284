"""A process that compiles shares of a model's kernels: `python -m strata.engine.compile_share`, run by `precompile`.

Knows how the work is cut. Reads a job a line in JSON and answers each with a line. A share is compiled by launching its
steps once over no rows, on a model's skeleton in the card's memory.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from strata.engine.chunk_loading import COMPILED_ROWS, compiling_context, compiling_launches
from strata.engine.flights import forget, launching
from strata.engine.graphs import wanted_graphs
from strata.engine.stage import Stage, StageSizes
from strata.engine.tier_loading import make_tiers, ranks_of
from strata.experts.feed import ResidentExperts
from strata.kernels.compiled import noting_compilations, use_cache
from strata.kernels.roads import use_dependent_launches
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.file_tables import file_tables_of
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import ChunkMemory
from strata.models.device.reading.support import chunk_problem
from strata.models.device.sizes import CELL_ROWS
from strata.models.device.skeleton import SkeletonPlaces, SkeletonWeights
from strata.models.families import family_of
from strata.models.needs import Part, part_of
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from strata.weights.opening import open_model


@dataclass(frozen=True)
class CompileRequest:
    """For which model, card and sizes."""

    model: Path
    quantize: str
    slots: int
    most_drafts: int
    card: int
    cache: Path
    dependent_launches: bool = True
    has_tiers: bool = False  # whether experts lie in tiers, which windows then plan
    waits_in_stream: bool = False  # whether the stream waits for answers of the CPU
    reads_tables: bool = False  # whether n-gram tables stay in files, which windows then ask for rows
    reads_chunks: bool = False  # whether prompts are read in chunks
    kv_kind: str = CellKind.BF16.value  # of keys and values
    kv_resident: int = 0  # cells a slot of them on the card; 0: all
    groups: int = 1  # of slots, whose windows run side by side


@dataclass(frozen=True)
class Share:
    """What came of one share."""

    kernels: int  # compiled, or found compiled
    failures: tuple[str, ...]  # sentences


def job_as_line(request: CompileRequest, share: int, shares: int) -> bytes:
    """JSON, with its newline."""
    return (json.dumps([asdict(request), share, shares], default=str) + "\n").encode()


def job_of_line(line: str) -> tuple[CompileRequest, int, int]:
    """The inverse of `job_as_line`."""
    values, share, shares = json.loads(line)
    return CompileRequest(**values | {"model": Path(values["model"]), "cache": Path(values["cache"])}), share, shares


def share_of_line(line: bytes) -> Share:
    """From what the process answers."""
    values = json.loads(line)
    return Share(values["kernels"], tuple(values["failures"]))


def compile_share(request: CompileRequest, share: int, shares: int) -> Share:
    """Launch every `shares`-th group of launches, from number `share` on, over no rows."""
    use_cache(request.cache)
    use_dependent_launches(request.dependent_launches)
    device = torch.device("cuda", request.card)
    torch.cuda.set_device(device)
    stage = stage_of(request, device)
    failures = []
    with noting_compilations() as noted:
        for group in list(_groups_of(stage, request))[share::shares]:
            try:
                with launching(stage):  # who asks is answered, and who collects what another share asked for too
                    for launch in group:
                        launch.run()
                    stage.wait()
                forget(stage)
            except Exception as reason:  # told by the process that asked, with all others
                failures.append(f"{group[0].kind}, {group[0].step}: {type(reason).__name__}: {reason}")
    return Share(noted.count, tuple(failures))


def step_groups(stage: Stage) -> Iterator[list[Launch]]:
    """Every launch of all that is run of a stage, once; those of one bucket, step and kind of layer together."""
    seen: set[int] = set()
    for variant, bucket in wanted_graphs(stage):
        groups: dict[tuple[str, str], list[Launch]] = {}
        for launch in stage.launches(variant, bucket):
            if id(launch) not in seen:  # variants share most of them
                seen.add(id(launch))
                groups.setdefault((launch.kind, launch.step), []).append(launch)
        yield from groups.values()


def chunk_groups(stage: Stage) -> Iterator[list[Launch]]:
    """The same of a chunk's launches, if prompts can be read so."""
    if chunk_problem(stage.model) is not None:
        return
    sizes = replace(stage.sizes, slots=1, context=compiling_context(stage.model), most_drafts=0)
    stage = Stage(stage.model, sizes, (1,))
    chunks = ChunkMemory(stage.model, stage.state, stage.rotation, ResidentExperts(()), max(COMPILED_ROWS))
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in compiling_launches(chunks):
        groups.setdefault((launch.kind, launch.step), []).append(launch)
    yield from groups.values()


def _groups_of(stage: Stage, request: CompileRequest) -> Iterator[list[Launch]]:
    yield from step_groups(stage)
    if request.reads_chunks:
        yield from chunk_groups(stage)


def skeleton_of(request: CompileRequest, device: torch.device) -> DeviceModel:
    """The model without its values."""
    source = open_model(request.model, request.quantize)
    family = family_of(source.config)
    names = [name for name in source.names() if part_of(name) is not Part.MTP]
    weights = SkeletonWeights(source, names, device, reads_tables=request.reads_tables)
    built: Any = family.build(family.parse_config(source.config), weights)
    is_waiting, tiers = request.waits_in_stream, None
    tables = file_tables_of(built, device, waits_in_stream=is_waiting)
    if request.has_tiers:
        places = SkeletonPlaces(source, names)
        tiers = make_tiers(places, ranks_of(built), device, Pool(1), waits_in_stream=is_waiting, groups=request.groups)
    return describe(built, device, tiers, tables)


@cache
def stage_of(request: CompileRequest, device: torch.device) -> Stage:
    """The process's stage: one for all its shares. No kernel depends on the length of a conversation."""
    kind = CellKind(request.kv_kind)
    sizes = StageSizes(request.slots, CELL_ROWS, request.most_drafts, kind, request.kv_resident)
    return Stage(skeleton_of(request, device), sizes)


def main() -> None:
    """Answer until the other end is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a compiler prints is no answer
    for line in sys.stdin:
        try:
            found = compile_share(*job_of_line(line))
        except Exception as reason:  # no card, no memory: told by the process that asked
            found = Share(0, (f"{type(reason).__name__}: {reason}",))
        print(json.dumps(asdict(found)), file=answers, flush=True)


if __name__ == "__main__":
    main()
