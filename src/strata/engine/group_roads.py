"""The roads of groups: streams on which a group's windows are launched beside those of other groups, and their order.

Knows streams of devices; knows no window. Anything else, such as reads and copies of states, is on the main road, which
is the current stream of each device. With one group its windows are there, too.

    main       a read ─┐                     ┌─ a copy of a state ─┐
    group 0            ├─ window ── window ──┤                     ├─ window
    group 1            └─ window ── window ──┘                     └─ window

Between windows of two groups there is no order. A group's launches come behind all that the main road had by then, and
what the main road is given behind `join` comes behind all that the group had by then.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch


class GroupRoads:
    """Of one or several devices. Elsewhere than on a GPU whatever is launched is done at once, so there is one road."""

    def __init__(self, devices: Iterable[torch.device], groups: int) -> None:
        """The main road is each device's current stream of this thread, from now on."""
        self._cards = [device for device in dict.fromkeys(devices) if device.type == "cuda"]
        self._main = [torch.cuda.current_stream(card) for card in self._cards]
        several = groups if groups > 1 else 0
        self._groups = [[torch.cuda.Stream(card) for card in self._cards] for _ in range(several)]

    @contextmanager
    def of_group(self, group: int) -> Iterator[None]:
        """What is launched inside goes to this group's road, behind what it and the main road have."""
        if not self._groups:
            yield
            return
        with ExitStack() as inside:
            for stream, main in reversed(list(zip(self._groups[group], self._main, strict=True))):
                stream.wait_stream(main)
                inside.enter_context(torch.cuda.stream(stream))
            yield

    def join(self, group: int) -> None:
        """What is launched on the main road from now on comes behind all that the group's road has."""
        if self._groups:
            for stream, main in zip(self._groups[group], self._main, strict=True):
                main.wait_stream(stream)

    def beside_main(self, device: torch.device) -> tuple[torch.cuda.Stream, ...]:
        """The groups' streams of one device; none where everything is on the main road."""
        if device not in self._cards:
            return ()
        place = self._cards.index(device)
        return tuple(streams[place] for streams in self._groups)
