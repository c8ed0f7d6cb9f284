"""How the launches of attention are cut, one way for all rows and contexts: bits may depend on it. Knows no kernel.

`python -m tests.gpu.tune_attention` times others beside these.
"""

from dataclasses import dataclass

from strata.quant.cell_codes import CellKind


@dataclass(frozen=True)
class ChooseLaunch:
    """Of scoring blocks and selecting the best."""

    tile: int  # blocks that a program scores at a time
    slice: int  # columns that threads side by side read of a key: few of them then exchange sums
    warps: int  # also of the program that selects
    registers: int | None = None  # most of a thread, in slots of up to 16 blocks a thread


@dataclass(frozen=True)
class AttendLaunch:
    """Of attending to parts and merging them. Registers, loops and what is asked for early change no bit."""

    chunk: int = 64  # cells read at a time: keys and values of 256 bfloat16 are then 64 KB
    least_part: int = 64  # cells; a multiple of `chunk`, and at least parts.LEAST_PART
    warps: int = 4
    merge_warps: int = 2
    rotated_merge_warps: int = 4  # where a program merges a whole head, to rotate it back
    rotated_merge_step: int = 64  # parts that it adds up at a time
    registers: int | None = None  # most of a thread
    asks_values_early: bool = True  # before the scores; they wait in registers meanwhile
    loops: bool = False  # even where every part is one chunk


CHOOSE_LAUNCH = ChooseLaunch(tile=64, slice=32, warps=8)  # 7,500 blocks are 118 tiles of 32 KB
ATTEND_LAUNCH = AttendLaunch()  # a program a multiprocessor, each waits for memory once
CROWDED_LAUNCH = AttendLaunch(asks_values_early=False)  # fewer registers: more programs, which fill one another's waits
WIDE_LAUNCH = AttendLaunch(chunk=32, least_part=32)  # of float32: keys and values of 32 cells are 64 KB
WIDE_CROWDED_LAUNCH = AttendLaunch(chunk=32, least_part=32, asks_values_early=False)
CROWDED_ROWS = 8  # at 1,024 positions they have 256 programs of the published model, two for a multiprocessor


def attend_launch(rows: int, kind: CellKind) -> AttendLaunch:
    """Of a bucket of `rows` rows over cells of a kind; the two that it may be of one kind give the same bits."""
    if kind is CellKind.F32:
        return WIDE_CROWDED_LAUNCH if rows >= CROWDED_ROWS else WIDE_LAUNCH
    return CROWDED_LAUNCH if rows >= CROWDED_ROWS else ATTEND_LAUNCH
