"""Chains over stages of which all but the first are in other processes, one a rank: who is asked, and by which way.

Knows ranks, groups and the order in which ways are numbered, which is the same in every process.
"""

from collections.abc import Sequence

from strata.engine.chain import ChainWays, StageChain
from strata.engine.chain_stage import ChainStage
from strata.engine.local_stage import LocalStage
from strata.engine.remote_copy import DistributedCopy
from strata.engine.remote_stage import RemoteStage
from strata.engine.stage_calls import PartFacts
from strata.engine.stage_line import StageLine


def ways_of(stages: int, groups: int) -> list[tuple[int, int]]:
    """Every way from rank to rank: of each group its streams forward, then its tokens back; last of chunks forward."""
    last = stages - 1
    forward = [(rank, rank + 1) for rank in range(last)]
    return [*forward, *((last, rank) for rank in range(last))] * groups + forward


def chain_ways(copies: Sequence[DistributedCopy], stages: int, group: int) -> ChainWays:
    """Those of one group, of all that `ways_of` has."""
    first = group * 2 * (stages - 1)
    middle = first + stages - 1
    return ChainWays(copies[first:middle], copies[middle : middle + stages - 1])


def chunk_ways(copies: Sequence[DistributedCopy], stages: int) -> Sequence[DistributedCopy]:
    """Those of chunks, of all that `ways_of` has: to each stage but the first."""
    return copies[len(copies) - stages + 1 :]


def remote_chains(
    groups: Sequence[LocalStage],
    others: Sequence[tuple[StageLine, PartFacts]],
    copies: Sequence[DistributedCopy],
) -> list[StageChain]:
    """A chain for each group of slots. groups: this process' stage, for each; others: of ranks 1.., in order."""
    count = 1 + len(others)
    chains = []
    for group, stage in enumerate(groups):
        remote: list[ChainStage] = [
            RemoteStage(line, facts, place_of(line.rank, count), group) for line, facts in others
        ]
        chains.append(StageChain([stage, *remote], chain_ways(copies, count, group), group))
    return chains


def place_of(rank: int, count: int) -> str:
    """Which stage of how many a rank has, for an error."""
    return f"stage {rank + 1} of {count} (rank {rank})"
