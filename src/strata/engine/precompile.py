"""Compiles the kernels that a model's windows need, in processes side by side, into the folder where they are kept.

Knows processes and the file that says that all is there; how the work is cut is in `compile_share.py`.
"""

import hashlib
import json
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path

from strata.engine.compile_share import CompileRequest, Share, job_as_line, share_of_line
from strata.errors import EngineError
from strata.hardware import GpuFacts, read_cpu, read_memory
from strata.types import ProgressCallback
from strata.weights.opening import ModelSource

_STAGE = "compiling kernels"
COMMAND = (sys.executable, "-m", "strata.engine.compile_share")
PROCESS_BYTES = 1 << 30  # of the card, for a process: its context and kernels, beside the skeleton
PROCESS_RAM_BYTES = 2 << 30  # an assumption: Python, torch, CUDA and a compiler
SHARES_A_PROCESS = 4  # a process that was lucky takes another share

LOST = Share(0, ("a process that compiled it ended",))

_Process = subprocess.Popen[bytes]


def compile_ahead(
    request: CompileRequest, marker: Path, gpu: GpuFacts, on_progress: ProgressCallback | None = None
) -> None:
    """Compile what a stage is about to need, unless the marker says that it is there or there are too few cores.

    What cannot be compiled here is left to the stage, which compiles what is missing and says why it cannot.
    """
    if marker.exists():
        return
    processes = processes_that_fit(read_cpu().usable_cores, gpu.free_bytes, read_memory().usable)
    if processes > 1:
        with suppress(EngineError, OSError):
            precompile(request, processes, on_progress)


def marker_of(request: CompileRequest, source: ModelSource, gpu: GpuFacts) -> Path:
    """The file in the folder of kernels that is there once all of this model's were compiled for this card.

    Its name is a hash of what decides which kernels those are. It may lie: a stage compiles what is missing.
    """
    tensors = {
        (tuple(source.shape(name)), source.stored_code(name), source.stored_bytes(name)) for name in source.names()
    }
    versions = [platform.python_version(), *map(_version, ("strata-moe", "torch", "triton"))]
    asked = [request.quantize, request.slots, request.most_drafts, request.dependent_launches]
    asked += [request.has_tiers, request.waits_in_stream, request.reads_tables, request.reads_chunks, request.kv_kind]
    asked += [request.kv_resident > 0, request.groups > 1]
    facts = [source.config, sorted(tensors), asked, [gpu.name, gpu.compute_capability], versions]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return request.cache / f"complete-{digest[:32]}"


def mark_compiled(marker: Path) -> None:
    """From now on the marker says that all is there. A folder that cannot be written to stays as it is."""
    with suppress(OSError):
        marker.touch()


def processes_that_fit(cores: int, card_bytes: int, ram_bytes: int) -> int:
    """How many processes may compile at once: a core for each but one, and room for all on the card and beside it."""
    return max(1, min(cores - 1, card_bytes // (2 * PROCESS_BYTES), ram_bytes // PROCESS_RAM_BYTES))


def precompile(request: CompileRequest, processes: int, on_progress: ProgressCallback | None = None) -> int:
    """Compile everything; how many kernels were compiled or found. Raises EngineError with what could not be.

    An interrupt ends the processes and is raised again; what is in the folder stays.
    """
    shares = processes * SHARES_A_PROCESS
    found: list[Share] = []
    _report(on_progress, 0, shares)
    with closing(_answers(request, processes, shares)) as answers:
        for share in answers:
            found.append(share)
            _report(on_progress, len(found), shares)
    failures = [failure for share in found for failure in share.failures]
    if failures:
        raise EngineError(f"{len(failures)} steps of a window could not be compiled; the first: {failures[0]}")
    return sum(share.kernels for share in found)


def _answers(request: CompileRequest, processes: int, shares: int) -> Generator[Share]:
    """What comes of every share, as long as a process is there to tell; a lost one's share is a failure.

    The processes have ended when it is closed.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for share in range(shares):
        waiting.put(share)
    answers: queue.SimpleQueue[Share | None] = queue.SimpleQueue()
    started: list[tuple[_Process, threading.Thread]] = []
    try:
        for _ in range(processes):
            process = _start_process()
            thread = threading.Thread(target=_feed, args=(process, request, shares, waiting, answers), daemon=True)
            started.append((process, thread))
            thread.start()
        alive = processes
        for _ in range(shares):
            answer = answers.get()
            alive -= answer is None
            yield answer or LOST
            if not alive:
                return
    finally:
        for process, _ in started:
            process.kill()
        for _, thread in started:
            thread.join()


def _start_process() -> _Process:
    """A process in a group of its own: Ctrl-C at a terminal is for this one, which ends the other."""
    pipe = subprocess.PIPE
    return subprocess.Popen(COMMAND, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, process_group=0)


def _feed(
    process: _Process,
    request: CompileRequest,
    shares: int,
    waiting: "queue.SimpleQueue[int]",
    answers: "queue.SimpleQueue[Share | None]",
) -> None:
    """Have one process compile what is waiting. In a thread of its own; None: the process has ended."""
    with process:
        while True:
            try:
                share = waiting.get_nowait()
            except queue.Empty:
                return
            answer = _ask(process, job_as_line(request, share, shares))
            answers.put(answer)
            if answer is None:
                return


def _ask(process: _Process, job: bytes) -> Share | None:
    """What a process answers to a job; None if it has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(job)
        answer = process.stdout.readline()
    except OSError:
        return None
    return share_of_line(answer) if answer else None


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _report(on_progress: ProgressCallback | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(_STAGE, done, total)
