"""Tables on their way to a device: each is copied as it was, and a room is used again behind its copy."""

import torch

from strata.experts.staging import ROOMS, Staging
from strata.experts.streams import Mark, PlainStreams

CPU = torch.device("cpu")


class _Late:
    """See `Mark`: passed once somebody has waited."""

    def __init__(self, waited: list[int], number: int) -> None:
        self._waited, self._number = waited, number

    def is_passed(self) -> bool:
        return False

    def wait(self) -> None:
        self._waited.append(self._number)

    def seconds_since(self, earlier: "_Late") -> float:
        return 0.0


class _LateStreams(PlainStreams):
    def __init__(self) -> None:
        self.waited: list[int] = []
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy_behind(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.copies.append((source, target))

    def mark_main(self) -> Mark:
        return _Late(self.waited, len(self.copies))


def test_a_table_arrives_as_it_was_and_its_room_is_used_again_behind_its_copy() -> None:
    streams = _LateStreams()
    staging = Staging(64, CPU, streams)
    values = [torch.arange(8, dtype=torch.int64) + 10 * number for number in range(ROOMS + 1)]
    targets = [torch.zeros(2, 4, dtype=torch.int64) for _ in values]
    for value, target in zip(values[:ROOMS], targets, strict=False):
        staging.put(value.view(2, 4), target)
        value += 1000  # whoever gave it may change it
    assert streams.waited == []
    for source, target in streams.copies:
        target.copy_(source)
    staging.put(values[-1].view(2, 4), targets[-1])
    assert streams.waited == [1]
    assert [int(target[0, 0]) for target in targets] == [0, 10, 20, 30, 0]
    staging.put(torch.ones(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32))
    assert streams.waited == [1, 2] and streams.copies[-1][0].tolist() == [1, 1, 1]
