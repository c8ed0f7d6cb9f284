"""A layer's experts onto a card: packed into one of two buffers of pinned memory while the other one is copied.

Knows who may write into which buffer when; knows not how an expert is packed. Elsewhere than on CUDA copies are plain.
"""

import torch

from strata.experts.packing import BATCH_BYTES, STAGE, PackingThreads, fill_blobs
from strata.experts.sources import ExpertSource
from strata.types import ProgressCallback


class Staging:
    """Two buffers on the way to one device; they grow to the largest batch and are used again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * 2
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def take(self, size: int) -> torch.Tensor:
        """`size` bytes of the buffer whose turn it is, once what was sent from it has arrived."""
        self._turn = 1 - self._turn
        self._wait_for(self._turn)
        if self._buffers[self._turn].numel() < size:
            is_pinned = self.device.type == "cuda"
            self._buffers[self._turn] = torch.zeros(size, dtype=torch.uint8, pin_memory=is_pinned)
        return self._buffers[self._turn][:size]

    def send(self, filled: torch.Tensor, there: torch.Tensor) -> None:
        """Copy what was taken last to the device, behind what is under way there; returns at once."""
        there.copy_(filled, non_blocking=True)
        if self.device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))
            self._copied[self._turn] = event

    def wait(self) -> None:
        """Until everything has arrived."""
        for turn in (0, 1):
            self._wait_for(turn)

    def _wait_for(self, turn: int) -> None:
        event, self._copied[turn] = self._copied[turn], None
        if event is not None:
            event.synchronize()


def upload_experts(
    source: ExpertSource,
    layer: str,
    staging: Staging,
    threads: PackingThreads,
    on_progress: ProgressCallback | None = None,
) -> torch.Tensor:
    """All experts of a layer one after another on the staging's device: uint8 [experts * blob bytes].

    Main memory holds two batches of them at most. Raises WeightFileError for what cannot be used.
    """
    count, blob_bytes = source.count(layer), source.layout(layer).total_bytes
    memory = torch.empty(count * blob_bytes, dtype=torch.uint8, device=staging.device)
    step = max(1, BATCH_BYTES // blob_bytes)
    for first in range(0, count, step):
        experts = min(step, count - first)
        batch = staging.take(experts * blob_bytes)
        for done in fill_blobs(source, layer, first, batch.view(experts, blob_bytes), threads):
            if on_progress is not None:
                on_progress(STAGE, (first + done) * blob_bytes, memory.numel())
        staging.send(batch, memory[first * blob_bytes :][: batch.numel()])
    staging.wait()
    return memory
