"""Changes of a table of addresses on a device: collected, then written at once behind what was launched there.

Knows numbers of entries and what they become; knows no expert and not when a launch comes.
"""

import torch

ROOM = 512  # changes of one copy; two rounds of swaps make fewer
BUFFERS = 4  # copies under way, and windows in flight are two


class AddressChanges:
    """Over one table, int64 and contiguous. However many changes there are, a launch waits for one copy and one write.

    Not thread-safe.
    """

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table.view(-1)
        self._pending: dict[int, int] = {}  # by entry: the last address that it was given
        self._arrived = torch.zeros(2, ROOM, dtype=torch.int64, device=table.device)  # entries, addresses
        self._sent = [torch.zeros(2, ROOM, dtype=torch.int64, pin_memory=table.is_cuda) for _ in range(BUFFERS)]
        self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
        self._turn = 0
        self.set(0, int(self._table[0]))
        self.flush()  # a card loads the write's kernel now, and not while windows run

    def set(self, entry: int, address: int) -> None:
        """From the next `flush` on. Raises IndexError for an entry that there is not."""
        if not 0 <= entry < self._table.numel():
            raise IndexError(f"entry {entry} of {self._table.numel()} addresses")
        self._pending[entry] = address

    def flush(self) -> None:
        """Write what was set on the current stream; returns at once. What an error leaves is written the next time.

        It waits only where `BUFFERS` copies of earlier calls are still under way.
        """
        while self._pending:
            part = list(self._pending.items())[:ROOM]
            self._write(part)
            for entry, _ in part:
                del self._pending[entry]

    def _write(self, part: list[tuple[int, int]]) -> None:
        sent, arrived = self._next_buffer(), self._arrived
        count = len(part)
        sent[:, :count] = torch.tensor(part, dtype=torch.int64).T
        arrived.copy_(sent, non_blocking=True)
        if self._table.is_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._table.device))
            self._copied[self._turn] = event
        self._table.index_copy_(0, arrived[0, :count], arrived[1, :count])

    def _next_buffer(self) -> torch.Tensor:
        """The buffer whose turn it is; what was copied from it has arrived."""
        self._turn = (self._turn + 1) % BUFFERS
        event, self._copied[self._turn] = self._copied[self._turn], None
        if event is not None:
            event.synchronize()
        return self._sent[self._turn]
