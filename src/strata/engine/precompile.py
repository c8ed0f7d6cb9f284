"""Compiles the kernels that a model's windows need, in processes side by side, into the folder where they are kept.

Knows how the work is cut; a process builds the model's skeleton on the card and launches each step once over no rows.
"""

import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from strata.engine.graphs import wanted_graphs
from strata.engine.stage import Stage, StageSizes, Variant
from strata.errors import EngineError
from strata.kernels.compiled import noting_compilations, use_cache
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.launches import Launch
from strata.models.device.sizes import CELL_ROWS
from strata.models.device.skeleton import SkeletonWeights
from strata.models.families import family_of
from strata.models.needs import Part, part_of
from strata.types import ProgressCallback
from strata.weights.opening import open_model

_STAGE = "compiling kernels"
PROCESS_BYTES = 1 << 30  # of the card, for a process: its context and kernels, beside the skeleton
SHARES_A_PROCESS = 4  # a process that was lucky takes another share


@dataclass(frozen=True)
class CompileRequest:
    """For which model, card and sizes."""

    model: Path
    quantize: str
    slots: int
    most_drafts: int
    card: int
    cache: Path


@dataclass(frozen=True)
class Share:
    """What one process did."""

    kernels: int  # compiled, or found compiled
    failures: tuple[str, ...]  # sentences


def precompile(request: CompileRequest, processes: int, on_progress: ProgressCallback | None = None) -> int:
    """Compile everything; how many kernels were compiled or found. Raises EngineError with what could not be.

    An interrupt ends the processes and is raised again; what is in the folder stays.
    """
    shares = processes * SHARES_A_PROCESS
    kernels = 0
    failures: list[str] = []
    with multiprocessing.get_context("spawn").Pool(processes, _leave_interrupts) as pool:
        jobs = ((request, share, shares) for share in range(shares))
        for done, share in enumerate(pool.imap_unordered(compile_share, jobs)):
            kernels += share.kernels
            failures += share.failures
            if on_progress is not None:
                on_progress(_STAGE, done + 1, shares)
    if failures:
        raise EngineError(f"{len(failures)} steps of a window could not be compiled; the first: {failures[0]}")
    return kernels


def compile_share(job: tuple[CompileRequest, int, int]) -> Share:
    """In a process of its own: launch a share of all steps over no rows."""
    request, share, shares = job
    use_cache(request.cache)
    device = torch.device("cuda", request.card)
    torch.cuda.set_device(device)
    stage = _stage_of(request, device)
    failures = []
    with noting_compilations() as noted:
        for group in list(step_groups(stage))[share::shares]:
            try:
                for launch in group:
                    launch.run()
                stage.wait()
            except Exception as reason:  # told by the process that asked, with all others
                failures.append(f"{group[0].kind}, {group[0].step}: {type(reason).__name__}: {reason}")
    return Share(noted.count, tuple(failures))


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that asked, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def step_groups(stage: Stage) -> Iterator[list[Launch]]:
    """All launches of all buckets, those of one step and one kind of layer together."""
    for variant, bucket in wanted_graphs(stage.buckets):
        if variant not in (Variant.WINDOW, Variant.READ):
            continue  # a window has the others' launches
        groups: dict[tuple[str, str], list[Launch]] = {}
        for launch in stage.launches(variant, bucket):
            groups.setdefault((launch.kind, launch.step), []).append(launch)
        yield from groups.values()


def processes_that_fit(cores: int, free_bytes: int) -> int:
    """How many processes may compile at once: a core for each but one, and room on the card."""
    return max(1, min(cores - 1, free_bytes // (2 * PROCESS_BYTES)))


def skeleton_of(request: CompileRequest, device: torch.device) -> DeviceModel:
    """The model without its values."""
    source = open_model(request.model, request.quantize)
    family = family_of(source.config)
    names = [name for name in source.names() if part_of(name) is not Part.MTP]
    built = family.build(family.parse_config(source.config), SkeletonWeights(source, names, device))
    return describe(built, device)


_stages: dict[CompileRequest, Stage] = {}


def _stage_of(request: CompileRequest, device: torch.device) -> Stage:
    """The process's stage: one for all its shares. No kernel depends on the length of a conversation."""
    if request not in _stages:
        sizes = StageSizes(request.slots, CELL_ROWS, request.most_drafts)
        _stages[request] = Stage(skeleton_of(request, device), sizes)
    return _stages[request]
