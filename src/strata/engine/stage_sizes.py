"""How much room a stage has, and for which numbers of rows its windows are made. Pure; knows no device."""

from dataclasses import dataclass

from strata.quant.cell_codes import CellKind

ROW_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MOST_ROWS = ROW_BUCKETS[-1]


@dataclass(frozen=True)
class StageSizes:
    """How much room a stage has; the same for all stages of a chain."""

    slots: int
    context: int  # rows of a slot
    most_drafts: int = 0  # of a slot in one window
    kv_kind: CellKind = CellKind.BF16  # of keys and values
    kv_resident: int = 0  # cells of a slot that the device keeps while main memory has all; 0: all lie on the device


def bucket_of(rows: int) -> int:
    """The least bucket that holds `rows`. Raises ValueError for more than a window takes."""
    for bucket in ROW_BUCKETS:
        if bucket >= rows:
            return bucket
    raise ValueError(f"{rows} rows are more than the {MOST_ROWS} of a window")


def buckets_for(slots: int, most_drafts: int) -> tuple[int, ...]:
    """Every bucket that windows of these slots can need, rising; prompts are read in the last one."""
    most = min(MOST_ROWS, slots * (1 + most_drafts))
    return tuple(sorted({bucket_of(rows) for rows in range(1, most + 1)} | {MOST_ROWS}))
