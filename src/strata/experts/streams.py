"""Two roads to a card for whoever moves experts while windows run: behind the windows, and beside them.

Knows copies and marks; knows no expert. On the CPU both roads are plain calls: what was asked for is done.
"""

from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A place on a road."""

    def is_passed(self) -> bool:
        """Whether everything in front of it is done; asks, and never waits."""
        ...

    def wait(self) -> None:
        """Until everything in front of it is done."""
        ...

    def seconds_since(self, earlier: Any) -> float:
        """From an earlier mark of the same road to this one, both passed, on the device's clock."""
        ...


class Streams(Protocol):
    """The *main* road carries windows, the *side* road copies beside them. No call waits for the device."""

    def mark_main(self) -> Mark:
        """Behind all windows that were launched so far."""
        ...

    def mark_side(self) -> Mark:
        """Behind all copies so far."""
        ...

    def hold_side(self, mark: Mark) -> None:
        """Copies from now on start once this mark of the main road is passed."""
        ...

    def hold_main(self, mark: Mark) -> None:
        """What is launched from now on starts once this mark of the side road is passed."""
        ...

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy on the side road; host memory must be pinned."""
        ...

    def copy_behind(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy on the main road; host memory must be pinned."""
        ...

    def wait(self) -> None:
        """Until everything on both roads is done: before its memory goes."""
        ...


def streams_of(device: torch.device) -> Streams:
    """The roads of a device; the main one is the current stream of this thread."""
    return CudaStreams(device) if device.type == "cuda" else PlainStreams()


class Passed:
    """A mark with nothing in front of it."""

    def is_passed(self) -> bool:
        """See `Mark`."""
        return True

    def wait(self) -> None:
        """See `Mark`."""

    def seconds_since(self, earlier: "Passed") -> float:
        """See `Mark`: no time is lost on a road of plain calls."""
        return 0.0


class PlainStreams:
    """See `Streams`: main memory on both sides."""

    def mark_main(self) -> Mark:
        """See `Streams`."""
        return Passed()

    def mark_side(self) -> Mark:
        """See `Streams`."""
        return Passed()

    def hold_side(self, mark: Mark) -> None:
        """See `Streams`."""
        assert mark.is_passed(), "a plain call is done when it returns"

    def hold_main(self, mark: Mark) -> None:
        """See `Streams`."""
        assert mark.is_passed(), "a plain call is done when it returns"

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        target.copy_(source)

    def copy_behind(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        target.copy_(source)

    def wait(self) -> None:
        """See `Streams`."""


class CudaMark:
    """An event that was recorded."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(stream)

    def is_passed(self) -> bool:
        """See `Mark`. Raises torch's error if the device is lost."""
        return self.event.query()

    def wait(self) -> None:
        """See `Mark`. Raises torch's error if the device is lost."""
        self.event.synchronize()

    def seconds_since(self, earlier: "CudaMark") -> float:
        """See `Mark`. Raises torch's error if the device is lost."""
        return earlier.event.elapsed_time(self.event) / 1e3


class CudaStreams:
    """See `Streams`. Both have one priority: copies beside take the card's copy engines, no room of a kernel's."""

    def __init__(self, device: torch.device) -> None:
        self._main = torch.cuda.current_stream(device)
        self._side = torch.cuda.Stream(device)

    def mark_main(self) -> Mark:
        """See `Streams`."""
        return CudaMark(self._main)

    def mark_side(self) -> Mark:
        """See `Streams`."""
        return CudaMark(self._side)

    def hold_side(self, mark: Mark) -> None:
        """See `Streams`."""
        assert isinstance(mark, CudaMark)
        self._side.wait_event(mark.event)

    def hold_main(self, mark: Mark) -> None:
        """See `Streams`."""
        assert isinstance(mark, CudaMark)
        self._main.wait_event(mark.event)

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        with torch.cuda.stream(self._side):
            target.copy_(source, non_blocking=True)

    def copy_behind(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        with torch.cuda.stream(self._main):
            target.copy_(source, non_blocking=True)

    def wait(self) -> None:
        """See `Streams`."""
        self._side.synchronize()
        self._main.synchronize()
