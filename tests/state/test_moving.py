"""States that move to main memory, and those that lie there."""

from typing import Any

from strata.state.moving import Movable, Parked, moves_on, park, unpark


class InPlace:
    """See `Movable`."""

    parts = 2

    def park(self) -> Any:
        return Away()

    def moves_on(self) -> bool:
        self.parts -= 1
        return self.parts >= 0


class Away:
    """See `Parked`."""

    def unpark(self) -> Any:
        return InPlace()

    def moves_on(self) -> bool:
        return False


def test_a_state_in_a_place_of_a_device_moves_by_itself() -> None:
    state = InPlace()
    assert isinstance(state, Movable) and not isinstance(state, Parked)
    parked = park(state)
    assert isinstance(parked, Away) and not isinstance(parked, Movable)
    assert isinstance(unpark(parked), InPlace)
    assert [moves_on(state) for _ in range(3)] == [True, True, False]
    assert not moves_on(parked)


def test_what_lies_in_main_memory_stays_what_it_is() -> None:
    state = {"rows": 3}
    assert park(state) is state
    assert unpark(state) is state
    assert not moves_on(state)
