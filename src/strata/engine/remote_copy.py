"""Hand-offs between processes and hosts, by torch.distributed: gloo for tensors in main memory, NCCL for cards.

Knows ranks and who is at the other end; knows no stage. Each process has one end of a `DistributedCopy`, and both make
the same sends and receives in the same order. Every way has a channel of its own - a tag with gloo, a group with NCCL -
so that two of them never wait for each other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from strata.errors import DeviceLostError

CROSSING_SECONDS = 300.0  # that an end waits for the other one: as long as a step may take
ROOM_BYTES = 16 << 20  # of a `StagedCopy`


@dataclass(frozen=True)
class Channel:
    """Where the tensors of one way go, from one rank to another."""

    source: int  # rank
    target: int
    number: int  # of the ways between all ranks; its tag
    group: Any = None  # None: that of all ranks

    @property
    def words(self) -> str:
        """For an error."""
        return f"way {self.number} from rank {self.source} to rank {self.target}"


def open_channels(ways: Sequence[tuple[int, int]], *, by_nccl: bool) -> list[Channel]:
    """A channel for each way, (source, target) by rank. All ranks call it with the same ways, and at the same time.

    Needs the process group of all ranks. Raises DeviceLostError if a rank does not come.
    """
    channels = []
    for number, (source, target) in enumerate(ways):
        group = None
        if by_nccl:
            with naming_loss(f"way {number} from rank {source} to rank {target} was not opened"):
                group = dist.new_group([source, target], timeout=timedelta(seconds=CROSSING_SECONDS), backend="nccl")
        channels.append(Channel(source, target, number, group))
    return channels


class DistributedCopy:
    """One end of a way. See `hand_off.HandOff`; of its three calls each end makes those of its own side.

    With gloo a receive waits on the host for the tensors, a send for nobody until the next one or `before_overwriting`.
    With NCCL nobody waits on the host: the current stream of the device does.
    """

    def __init__(self, channel: Channel, explain: Callable[[], None] | None = None) -> None:
        """explain: raises DeviceLostError with the reason why the other end is gone, if that is known."""
        self.number = channel.number  # the same at both ends, and for whoever tells them what to send
        self._channel, self._explain = channel, explain
        self._works: list[Any] = []

    def send(self, found: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises DeviceLostError if the other end is gone."""
        self.before_overwriting()
        for tensor in _contiguous(found):
            self._post(tensor)

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises DeviceLostError if the other end is gone, or does not send in time."""
        channel = self._channel
        with naming_loss(f"{channel.words}: receiving failed", self._explain):
            for tensor in _contiguous(wanted):
                work = dist.irecv(tensor, channel.source, group=channel.group, tag=channel.number)
                assert work is not None, "this rank is one of the channel's"
                work.wait()

    def _post(self, tensor: torch.Tensor) -> None:
        channel = self._channel
        with naming_loss(f"{channel.words}: sending failed", self._explain):
            self._works.append(dist.isend(tensor, channel.target, group=channel.group, tag=channel.number))

    def before_overwriting(self) -> None:
        """See `HandOff`. Raises DeviceLostError if the other end is gone, or does not receive in time."""
        with naming_loss(f"{self._channel.words}: what was sent was not taken", self._explain):
            while self._works:
                self._works.pop(0).wait()


class StagedCopy(DistributedCopy):
    """The same between cards by gloo, through a room in main memory: for a card that two ranks have, or without NCCL.

    Both ends wait on the host for what was launched before. What fits the room is sent and not waited for.
    """

    def __init__(self, channel: Channel, room: torch.Tensor, explain: Callable[[], None] | None = None) -> None:
        """room: uint8 in main memory, pinned for a card; of one size at both ends, which cut by it."""
        super().__init__(channel, explain)
        self._room = room

    def send(self, found: Sequence[torch.Tensor]) -> None:
        """See `DistributedCopy`; of more than the room has the other end takes a part before this one goes on."""
        self.before_overwriting()
        for piece, place in self._pieces(found):
            place.copy_(piece, non_blocking=True)
            _wait_for(piece)
            self._post(place)

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """See `DistributedCopy`."""
        for piece, place in self._pieces(wanted):
            super().receive([place])
            piece.copy_(place, non_blocking=True)
            _wait_for(piece)

    def _pieces(self, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Bytes of the tensors with their places in the room, which is empty again where they begin at its start."""
        used = 0
        for tensor in _contiguous(tensors):
            for piece in tensor.view(-1).view(torch.uint8).split(self._room.numel()):
                if used + piece.numel() > self._room.numel():
                    self.before_overwriting()
                    used = 0
                yield piece, self._room[used : used + piece.numel()]
                used += piece.numel()


def _wait_for(tensor: torch.Tensor) -> None:
    """Until copies of it are done."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


@contextmanager
def naming_loss(what: str, explain: Callable[[], None] | None = None) -> Iterator[None]:
    """Raises DeviceLostError for what torch.distributed could not do: `explain` does, or it has `what` in front."""
    try:
        yield
    except RuntimeError as failure:
        if explain is not None:
            explain()
        first = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        raise DeviceLostError(f"{what} ({first}): the stage at the other end is gone or stuck") from failure


def _contiguous(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Those that have bytes. Raises ValueError for one with gaps."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"tensors without gaps cross, not {list(tensor.shape)} with strides {tensor.stride()}")
        if tensor.numel():
            yield tensor
