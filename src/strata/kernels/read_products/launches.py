"""How reads are launched: tile sizes by the number of rows. Pure; every choice gives the same bits."""

from dataclasses import dataclass

from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout

WHOLE_STEP = 2  # blocks of 32 columns of a step that suits every code; parts of float codes are added step by step


@dataclass(frozen=True)
class ReadLaunch:
    """One launch of a kernel of products."""

    rows: int = 256  # of activations, of a program: a power of two, 32 at least
    more_rows: int = 0  # of a second group that shares the decoded weights; 0: none
    outputs: int = 64  # of the matrix, of a program: a power of two, 64 at least
    warps: int = 4
    stages: int = 3  # steps of the loop over columns whose loads are under way
    registers: int | None = None  # most of a thread
    blocks: int = 2  # of 32 columns, of a step over integer codes: 1, 2, 4 or 8
    groups: int = 1  # of outputs, one or two
    overlap: bool = True  # weights of the second group are decoded while the first one's are multiplied

    @property
    def options(self) -> dict[str, int | bool | None]:
        """How the kernel is compiled."""
        return {"num_warps": self.warps, "maxnreg": self.registers, "enable_fp_fusion": False}


@dataclass(frozen=True)
class ExpertLaunch:
    """One launch over experts. A program's rows are two groups that share the decoded weights."""

    rows: int = 128  # of the first group
    more_rows: int = 64  # of the second; 0: none
    outputs: int = 128  # of matrices, of a program: gate and up are half of it each
    warps: int = 8
    stages: int = 3  # steps of the loop over columns whose loads are under way
    registers: int | None = None  # most of a thread
    blocks: int = 2  # of 32 columns, of a step over integer codes: 1, 2, 4 or 8
    groups: int = 1  # of outputs, one or two
    overlap: bool = True  # weights of the second group are decoded while the first one's are multiplied

    @property
    def options(self) -> dict[str, int | bool | None]:
        """How the kernel is compiled."""
        return {"num_warps": self.warps, "maxnreg": self.registers, "enable_fp_fusion": False}

    @property
    def tile_rows(self) -> int:
        """Places of a program."""
        return self.rows + self.more_rows


def blocks_of_step(layout: MatrixLayout, launch: ReadLaunch | ExpertLaunch) -> int:
    """Blocks of a step of the loop over a matrix's columns.

    Float codes always take whole steps, and so do sub-blocks that are longer than a step would be.
    """
    if layout.code.is_float or layout.sub_block > BLOCK_COLUMNS * launch.blocks:
        return WHOLE_STEP
    return launch.blocks


def dense_launch(rows: int) -> ReadLaunch:
    """The launch of a dense matrix times `rows` rows.

    Of eight shapes of tiles on an H200, 256 rows times 64 outputs by four warps was the fastest for 8,192 rows of every
    matrix that was tried: weights are decoded least often, and two programs share a multiprocessor.
    """
    return ReadLaunch(rows=next((least for least in (32, 64, 128) if rows <= least), 256))
