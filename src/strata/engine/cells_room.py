"""What conversations take of a card and of main memory, by where their keys and values lie; and how few may be there.

Pure arithmetic from sizes and settings; knows no device and no tensor.
"""

from typing import Any

from strata.engine.memory_plan import Growth, Place, conversations
from strata.errors import SettingsError
from strata.models.device.cell_pools import least_resident, pool_bytes, stored_bytes
from strata.models.device.sizes import CELL_ROWS, StateSizes, cells_of
from strata.models.needs import StateBytes
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings

KEYS_AND_VALUES = "keys and values"  # in main memory, and on the card the blocks of them that it keeps


def conversation_room(
    state: StateBytes, sizes: StateSizes, settings: EngineSettings, context: int
) -> tuple[Growth, ...]:
    """The slots' states, each `state` where all of it lies on the card; context: the most that one may have."""
    kind = CellKind(settings.kv_kind)
    if not settings.kv_resident:
        return conversations(state)
    stored = stored_bytes(sizes, CELL_ROWS, kind) / CELL_ROWS
    tables = pool_bytes(sizes, CELL_ROWS, 0, kind) / CELL_ROWS
    pool = pool_bytes(sizes, cells_of(context), settings.kv_resident, kind) - int(tables * cells_of(context))
    return (
        *conversations(StateBytes(state.fixed, state.per_token - stored + tables)),
        Growth(KEYS_AND_VALUES, Place.CARD, per_slot=pool),
        Growth(KEYS_AND_VALUES, Place.RAM, per_token=stored),
    )


def check_resident(config: Any, sizes: StateSizes, settings: EngineSettings) -> None:
    """Raise SettingsError if a card cannot keep as few cells as `kv_resident` says. config: the family's."""
    asked = settings.kv_resident
    if not asked:
        return
    wrong = f"setting kv_resident: {asked:,} does not work"
    if not sizes.index_dim:
        raise SettingsError(
            f"{wrong}: every row of this model reads all its keys and values, because its attention has no indexer; "
            "0 does, which keeps them on the card, and a smaller kv_kind takes less of it"
        )
    least = least_resident(config.indexer.top_blocks, sizes.ratio)
    if asked < least:
        raise SettingsError(
            f"{wrong}: a row of this model may read {least:,} cells of its conversation, in blocks of {sizes.ratio}; "
            f"{least:,} is the least that works, and 0 keeps all of them on the card"
        )
