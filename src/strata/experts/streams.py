"""Two roads to a card for whoever moves experts while windows run: behind the windows, and beside them.

Knows copies and marks; knows no expert. On the CPU both roads are plain calls: what was asked for is done.

Where windows of several groups of slots run side by side, the main road has a lane for each: a mark lies behind all
that was launched on all lanes, and copies behind the windows are on the lane of whoever asks for them.
"""

from collections.abc import Sequence
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
        """Behind all windows that were launched so far, of all groups."""
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
        """Copy on the main road, behind the windows of the group that is launched now; host memory must be pinned."""
        ...

    def wait(self) -> None:
        """Until everything on both roads is done: before its memory goes."""
        ...


def streams_of(device: torch.device, groups: Sequence[torch.cuda.Stream] = ()) -> Streams:
    """The roads of a device; the main one is the current stream of this thread, and those of groups beside it."""
    return CudaStreams(device, groups) if device.type == "cuda" else PlainStreams()


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


class JoinedMark:
    """A place on several lanes of one road."""

    def __init__(self, lanes: Sequence[CudaMark]) -> None:
        self.lanes = lanes

    def is_passed(self) -> bool:
        """See `Mark`. Raises torch's error if the device is lost."""
        return all(each.is_passed() for each in self.lanes)

    def wait(self) -> None:
        """See `Mark`. Raises torch's error if the device is lost."""
        for each in self.lanes:
            each.wait()

    def seconds_since(self, earlier: "JoinedMark") -> float:
        """See `Mark`: on the lane that took longest. Raises torch's error if the device is lost."""
        return max(now.seconds_since(then) for then, now in zip(earlier.lanes, self.lanes, strict=True))


class CudaStreams:
    """See `Streams`. All have one priority: copies beside take the card's copy engines, no room of a kernel's."""

    def __init__(self, device: torch.device, groups: Sequence[torch.cuda.Stream] = ()) -> None:
        """groups: lanes of the main road beside this thread's current stream, which is the only one without them."""
        self._device = device
        self._lanes = (torch.cuda.current_stream(device), *groups)
        self._side = torch.cuda.Stream(device)

    def mark_main(self) -> Mark:
        """See `Streams`. Raises RuntimeError where windows are launched that the mark would not be behind."""
        if torch.cuda.current_stream(self._device) not in self._lanes:
            raise RuntimeError("windows are launched on a stream that whoever moves experts was not told of")
        marks = [CudaMark(lane) for lane in self._lanes]
        return marks[0] if len(marks) == 1 else JoinedMark(marks)

    def mark_side(self) -> Mark:
        """See `Streams`."""
        return CudaMark(self._side)

    def hold_side(self, mark: Mark) -> None:
        """See `Streams`."""
        for each in _lanes_of(mark):
            self._side.wait_event(each.event)

    def hold_main(self, mark: Mark) -> None:
        """See `Streams`."""
        (side,) = _lanes_of(mark)
        self._lane_now().wait_event(side.event)

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        with torch.cuda.stream(self._side):
            target.copy_(source, non_blocking=True)

    def copy_behind(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        with torch.cuda.stream(self._lane_now()):
            target.copy_(source, non_blocking=True)

    def wait(self) -> None:
        """See `Streams`."""
        self._side.synchronize()
        for lane in self._lanes:
            lane.synchronize()

    def _lane_now(self) -> torch.cuda.Stream:
        """Where whoever asks launches; with one lane that one, from any thread."""
        return self._lanes[0] if len(self._lanes) == 1 else torch.cuda.current_stream(self._device)


def _lanes_of(mark: Mark) -> Sequence[CudaMark]:
    if isinstance(mark, JoinedMark):
        return mark.lanes
    assert isinstance(mark, CudaMark)
    return (mark,)
