"""How many conversations fit beside the model. Pure arithmetic over bytes."""

from strata.engine.points import MOST_POINTS
from strata.engine.slot import RECENT_MARKS
from strata.errors import SettingsError
from strata.models.needs import StateBytes

MOST_SLOTS_UNASKED = 4


def full_slot_bytes(state: StateBytes, context: int) -> int:
    """What a slot takes whose conversation fills the context, with all its checkpoints.

    A checkpoint keeps the part of the state that does not grow.
    """
    return state.at(context) + (MOST_POINTS + 1 + RECENT_MARKS) * state.fixed


def slots_that_fit(asked: int | None, slot_bytes: int, free_bytes: int, context: int) -> int:
    """The number of slots: as asked, or as many as fit up to 4. Raises SettingsError if those asked for do not fit.

    One slot is always there, because few conversations fill the context.
    """
    fitting = free_bytes // slot_bytes
    if asked is None:
        return max(1, min(MOST_SLOTS_UNASKED, fitting))
    if asked > max(1, fitting):
        raise SettingsError(
            f"setting slots: {asked} does not work: a conversation of {context:,} tokens takes "
            f"{slot_bytes / 2**30:.2f} GiB and {free_bytes / 2**30:.1f} GiB are free, so {max(1, fitting)} fit; "
            "a smaller context makes room for more"
        )
    return asked
