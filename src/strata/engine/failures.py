"""What an exception out of a model means: the end of one request, of what runs on a GPU, or a mistake of ours.

Knows the words of Python, torch and Triton for memory that ran out and for a GPU that gave up.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strata.errors import DeviceLostError, EngineError, RequestError

_LOST = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]")


def is_out_of_memory(failure: BaseException) -> bool:
    """Whether an exception of Python, torch, CUDA or Triton says that memory ran out, here or on a card."""
    text = str(failure)
    return (
        isinstance(failure, MemoryError | torch.OutOfMemoryError)
        or "DefaultCPUAllocator" in text
        or ("CUDA" in text and "out of memory" in text)
    )


def request_error(failure: Exception) -> str:
    """What a request is told that a failure ends."""
    if not is_out_of_memory(failure):
        return str(failure)
    if "CUDA" not in str(failure):
        return "main memory ran out while the engine ran: other programs may have taken it; ask again"
    return "the card ran out of memory while the engine ran: other programs may have taken it; ask again"


def is_requests_failure(failure: Exception) -> bool:
    """Whether a failure ends the request it came from and nothing else."""
    if isinstance(failure, DeviceLostError):
        return False
    return isinstance(failure, EngineError | RequestError) or is_out_of_memory(failure)


@contextmanager
def naming_lost_device() -> Iterator[None]:
    """Raises DeviceLostError for what comes out of here if it says that the GPU gave up, everything else as it is."""
    try:
        yield
    except RuntimeError as failure:
        text = str(failure)
        if is_out_of_memory(failure) or not any(word in text for word in _LOST):
            raise
        raise DeviceLostError(
            f"the GPU failed while it computed ({text.splitlines()[0]}): what was under way is lost, and the engine "
            "must be started again"
        ) from failure
