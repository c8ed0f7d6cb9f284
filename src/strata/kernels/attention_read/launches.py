"""How the launches of a read's attention are cut; of attending, bits depend on the cells of a step. Knows no kernel."""

from dataclasses import dataclass, replace
from functools import cache

import torch

from strata.kernels.attention_rows.arguments import AttentionRowsShape

WARP_GROUPS = 9  # major compute capability whose matrix units read both operands from shared memory
MOST_DIM_OF_FULL_TILES = 128  # of an indexer's head
MOST_DIM_OF_DEEP_STEPS = 128  # of a head: three steps of its keys and values beside 128 rows are 128 KB


@dataclass(frozen=True)
class ScoreLaunch:
    """Of scoring blocks: changes no bit."""

    rows: int = 128
    blocks: int = 128
    warps: int = 8
    stages: int = 2  # heads whose queries are under way


@dataclass(frozen=True)
class SelectLaunch:
    """Of selecting a row's best: changes no choice."""

    few: int = 2048  # groups of blocks that registers hold, for rows of no more
    many: int = 8192  # and for others
    warps: int = 8


@dataclass(frozen=True)
class GatheredLaunch:
    """Of rows that attend to chosen blocks, a program for each row and key head."""

    cells: int = 32  # of a step
    warps: int = 2
    stages: int = 3  # steps whose cells are under way


@dataclass(frozen=True)
class DenseLaunch:
    """Of rows that attend to every cell up to their own."""

    rows: int = 128
    cells: int = 64  # of a step: steps begin at its multiples
    warps: int = 8
    stages: int = 2


@dataclass(frozen=True)
class AttentionReadLaunch:
    """The launches of one layer."""

    score: ScoreLaunch = ScoreLaunch()
    select: SelectLaunch = SelectLaunch()
    gathered: GatheredLaunch = GatheredLaunch()
    dense: DenseLaunch = DenseLaunch()


HOPPER = AttentionReadLaunch()
OTHERS = AttentionReadLaunch(  # for 99 KB of shared memory
    score=ScoreLaunch(rows=64, blocks=64, warps=4),
    gathered=GatheredLaunch(warps=4, stages=2),
    dense=DenseLaunch(rows=64, cells=32),
)


@cache
def launch_of(device: torch.device, shape: AttentionRowsShape) -> AttentionReadLaunch:
    """For a device and a layer. Wide heads of an indexer take smaller tiles: both operands lie in shared memory.

    Where every cell is attended to, narrow heads keep a step more under way: 17.0 ms instead of 20.8 for 8,192 rows of
    32 heads of 128 behind 32,768 on an H200.
    """
    is_other = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != WARP_GROUPS
    launch = OTHERS if is_other else HOPPER
    if not is_other and shape.head_dim <= MOST_DIM_OF_DEEP_STEPS:
        launch = replace(launch, dense=replace(launch.dense, stages=3))
    if shape.indexer is None or shape.indexer.head_dim <= MOST_DIM_OF_FULL_TILES:
        return launch
    score = replace(launch.score, rows=launch.score.rows // 2, blocks=launch.score.blocks // 2)
    return replace(launch, score=score)
