"""Moving a conversation's state to main memory and back, where it lies in a place that others want.

A state of tensors in main memory is where it should be; one in a slot of a device moves itself. Knows no family.
"""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Moving(Protocol):
    """A state that is copied a part at a time."""

    def moves_on(self) -> bool:
        """Launch the next part of what is left to copy of any state, to main memory or back; False: nothing is.

        Before that nobody computes rows in a place that something is copied from or to.
        """
        ...


@runtime_checkable
class Movable(Moving, Protocol):
    """A state in a place of a device."""

    def park(self) -> Any | None:
        """The state in main memory, which is `Parked`; None: there is no room. The place may be given away at once."""
        ...


@runtime_checkable
class Parked(Moving, Protocol):
    """A state in main memory that a device cannot compute with; also `state.checkpoints.Restorable`."""

    def unpark(self) -> Any:
        """The state in a place of the device. Raises EngineError if none is free."""
        ...


def park(state: Any) -> Any | None:
    """The state in main memory, perhaps itself; None: there is no room for it."""
    return state.park() if isinstance(state, Movable) else state


def unpark(state: Any) -> Any:
    """A parked state where it can be gone on with; `state` is still to be released if that is another one."""
    return state.unpark() if isinstance(state, Parked) else state


def moves_on(state: Any) -> bool:
    """See `Moving`."""
    return isinstance(state, Moving) and state.moves_on()
