"""What holds something of the library lets go of it at the end of its block, and with its last reference."""

from strata.native.closing import Closing


class Held(Closing):
    def __init__(self, closed: list[str]) -> None:
        self.closed = closed

    def close(self) -> None:
        self.closed.append("closed")


def test_the_end_of_a_block_closes() -> None:
    closed: list[str] = []
    held = Held(closed)
    with held as entered:
        assert entered is held
        assert closed == []
    assert closed == ["closed"]


def test_the_last_reference_closes() -> None:
    closed: list[str] = []
    held = Held(closed)
    del held
    assert closed == ["closed"]
