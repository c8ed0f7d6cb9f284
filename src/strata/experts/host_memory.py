"""Large pieces of main memory: in large pages, written to by several threads, pinned for a card where that is asked.

Knows the system's calls; knows not what lies in the memory. Everything is taken before the first window is launched:
a call that waits for a card beside a window that waits for the CPU would be a deadlock.
"""

import contextlib
import mmap
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from strata.errors import ModelError
from strata.types import ProgressCallback

STAGE = "taking memory for the experts"
TOUCHED_BYTES = 128 << 20  # at a time by one thread: what runs on after Ctrl-C

_FOR_EVERY_CARD = 1  # cudaHostRegisterPortable; else only the current one copies it as pinned memory


@dataclass(frozen=True)
class Pinning:
    """How memory is locked for a card: `pin(address, size)` says why it could not be, None if it could."""

    pin: Callable[[int, int], str | None]
    unpin: Callable[[int], None]

    @classmethod
    def cuda(cls) -> "Pinning":
        """Through torch's CUDA runtime; a card then reads the memory at the same addresses."""
        runtime = torch.cuda.cudart()

        def pin(address: int, size: int) -> str | None:
            result = int(runtime.cudaHostRegister(address, size, _FOR_EVERY_CARD))
            if result == 0:
                return None
            with contextlib.suppress(RuntimeError):  # CUDA reports a refusal once more, to whoever asks next
                torch.zeros(1, device="cuda")
                torch.cuda.synchronize()
            return f"CUDA says {result}"

        return cls(pin, lambda address: runtime.cudaHostUnregister(address))


class HostMemory:
    """Pieces of main memory, each from a page's start; locked until this object is gone if `is_pinned`."""

    def __init__(self, pieces: Sequence[torch.Tensor], unpin: Callable[[int], None] | None, notice: str | None) -> None:
        """unpin: for memory that was pinned; notice: a sentence for the user if it was to be and is not."""
        self.pieces = tuple(pieces)  # uint8
        self.is_pinned = unpin is not None
        self.notice = notice
        if unpin is not None:
            # Memory that is given back while it is pinned could never be pinned again at its addresses. When the
            # process ends the driver lets go by itself.
            weakref.finalize(self, _unpin_all, self.pieces, unpin).atexit = False


def take_host_memory(
    sizes: Sequence[int], threads: int, pinning: Pinning | None = None, on_progress: ProgressCallback | None = None
) -> HostMemory:
    """A piece of each size, zeros that are really there, pinned with `pinning` as a whole or not at all.

    Raises ModelError if the system gives no more. Whatever ends it, Ctrl-C too, leaves nothing pinned.
    """
    pieces = [anonymous_memory(size) for size in sizes]
    total = sum(sizes)
    pinned: list[torch.Tensor] = []
    done, notice = 0, None
    try:
        with ThreadPoolExecutor(threads, "strata-touch") as workers:
            for piece in pieces:
                _touch(piece, workers)
                if pinning is not None and notice is None and piece.numel():
                    problem = pinning.pin(piece.data_ptr(), piece.numel())
                    if problem is None:
                        pinned.append(piece)
                    else:
                        notice = _refusal(total, done, problem)
                done += piece.numel()
                if on_progress is not None:
                    on_progress(STAGE, done, total)
    except BaseException:
        if pinning is not None:
            _unpin_all(pinned, pinning.unpin)
        raise
    if pinning is None or notice is None:
        return HostMemory(pieces, None if pinning is None else pinning.unpin, None)
    _unpin_all(pinned, pinning.unpin)
    return HostMemory(pieces, None, notice)


def anonymous_memory(size: int) -> torch.Tensor:
    """uint8 [size], zeros from a page's start, in large pages where the system gives them; taken when written to.

    Child processes do not see it: a fork would copy what is pinned. Raises ModelError if the system gives no more.
    """
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as failure:
        raise ModelError(f"the system does not give {size / 2**30:.2f} GiB of memory for the experts") from failure
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        if hasattr(mmap, advice):
            with contextlib.suppress(OSError):  # a kernel without large pages: slower, not wrong
                memory.madvise(getattr(mmap, advice))
    return torch.frombuffer(memory, dtype=torch.uint8)


def _touch(piece: torch.Tensor, workers: ThreadPoolExecutor) -> None:
    """Write to every page: the system clears pages one after another for a single thread, and pinning is one."""
    parts = [part[:: mmap.PAGESIZE] for part in piece.split(TOUCHED_BYTES) if part.numel()]
    for touched in [workers.submit(part.zero_) for part in parts]:
        touched.result()


def _unpin_all(pieces: Sequence[torch.Tensor], unpin: Callable[[int], None]) -> None:
    for piece in pieces:
        if piece.numel():
            unpin(piece.data_ptr())


def _refusal(total: int, pinned: int, problem: str) -> str:
    return (
        f"the system does not pin the {total / 2**30:.1f} GiB of the experts in main memory ({problem} after "
        f"{pinned / 2**30:.1f} GiB): the CPU computes every expert that is not on the card, and the card reads none in "
        "place and keeps those that it has; a higher limit of locked memory helps (`ulimit -l unlimited`, for a "
        "container `--ulimit memlock=-1`)"
    )
