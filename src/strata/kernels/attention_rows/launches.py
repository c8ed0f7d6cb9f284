"""How the launches of attention are cut, one way for all rows and contexts: bits may depend on it. Knows no kernel.

`python -m tests.gpu.tune_attention` times others beside these.
"""

from dataclasses import dataclass

from strata.kernels.attention_rows.parts import LEAST_PART


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

    chunk: int = 32  # cells read at a time: keys and values of 256 float32 are then 64 KB
    least_part: int = LEAST_PART  # cells; a multiple of `chunk`
    warps: int = 4
    merge_warps: int = 2
    registers: int | None = None  # most of a thread
    asks_values_early: bool = True  # before the scores; they wait in registers meanwhile
    loops: bool = False  # even where every part is one chunk


CHOOSE_LAUNCH = ChooseLaunch(tile=64, slice=32, warps=8)  # 7,500 blocks are 118 tiles of 32 KB
ATTEND_LAUNCH = AttendLaunch()  # two programs a multiprocessor, each waits for memory once
CROWDED_LAUNCH = AttendLaunch(asks_values_early=False)  # 128 registers: four programs, which fill one another's waits
CROWDED_ROWS = 8  # at 1,024 positions they have 512 programs of the published model, four for a multiprocessor


def attend_launch(rows: int) -> AttendLaunch:
    """Of a bucket of `rows` rows; the two that it may be give the same bits."""
    return CROWDED_LAUNCH if rows >= CROWDED_ROWS else ATTEND_LAUNCH
