"""How the processes that torchrun started, a stage each, come together: lines to the leader, and torch.distributed.

Knows torchrun's store; no stage. Rank 0 leads: its engine's process joins the others, not the server, which knows no
torch.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from strata.engine.remote_copy import CROSSING_SECONDS, naming_loss
from strata.engine.remote_line import JOIN_SECONDS, Line, LineLost, find_leader, open_lines
from strata.engine.remote_ranks import Ranks
from strata.errors import EngineError


@dataclass(frozen=True)
class Joined:
    """The lines of a process that has come together with the others; torch.distributed is ready to be used."""

    ranks: Ranks
    lines: Sequence[Line]  # of the leader: to rank 1, 2..; of another one: to the leader


def join(ranks: Ranks, known: Sequence[type], seconds: float = JOIN_SECONDS) -> Joined:
    """Wait for all ranks. known: the classes of messages that come on the lines.

    Raises EngineError if they do not come in time.
    """
    time_limit = timedelta(seconds=seconds)
    is_leader = ranks.rank == 0
    try:
        with naming_loss(f"the store of torchrun at {ranks.host}:{ranks.port} does not answer"):
            hosts_store = is_leader and not ranks.is_hosted
            store = dist.TCPStore(
                ranks.host, ranks.port, is_master=hosts_store, wait_for_workers=False, timeout=time_limit
            )
            if is_leader:
                life, lines = open_lines(store, ranks.host, ranks.count, known, seconds)
            else:
                life, line = find_leader(store, ranks.rank, known, seconds)
                lines = [line]
    except LineLost as loss:
        raise EngineError(f"the stages did not come together: {loss}") from loss
    with naming_loss("the stages did not come together"):
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"strata/{life}", store),
            rank=ranks.rank,
            world_size=ranks.count,
            timeout=timedelta(seconds=CROSSING_SECONDS),
        )
    return Joined(ranks, lines)


def leave(joined: Joined) -> None:
    """Close the lines, and whatever torch.distributed still has open; waits for nobody."""
    for line in joined.lines:
        line.close()
    if dist.is_initialized():
        with suppress(RuntimeError):  # the others may be gone
            dist.destroy_process_group()
