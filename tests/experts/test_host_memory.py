"""Memory for experts: zeros from a page's start, pinned as a whole or not at all, let go before it is given back."""

import mmap

import pytest
import torch

from strata.errors import ModelError
from strata.experts.host_memory import STAGE, Pinning, anonymous_memory, take_host_memory


class Card:
    """Pins up to so many bytes and remembers what is pinned."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pinned: dict[int, int] = {}
        self.pinning = Pinning(self.pin, self.unpin)

    def pin(self, address: int, size: int) -> str | None:
        assert address not in self.pinned
        if sum(self.pinned.values()) + size > self.most:
            return "CUDA says 2"
        self.pinned[address] = size
        return None

    def unpin(self, address: int) -> None:
        del self.pinned[address]


def test_pieces_are_zeros_from_a_pages_start_and_progress_ends_at_all_of_them() -> None:
    told: list[tuple[str, int, int]] = []
    memory = take_host_memory([100, 0, 10_000], 2, on_progress=lambda *step: told.append(step))
    assert [piece.numel() for piece in memory.pieces] == [100, 0, 10_000]
    assert all(piece.data_ptr() % mmap.PAGESIZE == 0 and not piece.any() for piece in memory.pieces if piece.numel())
    assert told == [(STAGE, 100, 10_100), (STAGE, 100, 10_100), (STAGE, 10_100, 10_100)]
    assert (memory.is_pinned, memory.notice) == (False, None)


def test_pinned_memory_is_let_go_with_its_owner() -> None:
    card = Card(most=1 << 20)
    memory = take_host_memory([4096, 0, 8192], 1, card.pinning)
    assert (memory.is_pinned, memory.notice) == (True, None)
    assert card.pinned == {piece.data_ptr(): piece.numel() for piece in memory.pieces if piece.numel()}
    kept = memory.pieces[2]
    del memory
    assert card.pinned == {}
    assert not kept.any()  # who still looks at it finds it there


def test_a_system_that_refuses_leaves_nothing_pinned_and_says_what_helps() -> None:
    card = Card(most=10_000)
    memory = take_host_memory([4096, 4096, 4096, 4096], 2, card.pinning)
    assert not memory.is_pinned
    assert card.pinned == {}
    assert memory.notice is not None
    assert "CUDA says 2" in memory.notice
    assert "ulimit -l unlimited" in memory.notice
    assert all(piece.numel() == 4096 for piece in memory.pieces)


def test_an_interrupt_leaves_nothing_pinned() -> None:
    card = Card(most=1 << 20)

    def interrupt(stage: str, done: int, total: int) -> None:
        if done == total:
            assert len(card.pinned) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_host_memory([4096, 8192], 1, card.pinning, interrupt)
    assert card.pinned == {}


def test_more_than_the_system_has_is_refused_in_a_sentence() -> None:
    with pytest.raises(ModelError, match=r"does not give 67108864\.00 GiB of memory for the experts"):
        anonymous_memory(1 << 56)


def test_memory_is_ordinary_memory() -> None:
    memory = anonymous_memory(300)
    memory[:] = torch.arange(300) % 251
    assert memory.tolist() == [value % 251 for value in range(300)]
