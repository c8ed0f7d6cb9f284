"""A model over two processes: this file is started for rank 1, and gives rank 0 its model. Knows no test."""

import sys
from pathlib import Path

import torch

from strata.build_rank import rank_of
from strata.engine.remote_joining import Joined, join
from strata.engine.remote_loading import load_following, load_leading
from strata.engine.remote_meeting import Meeting, follow, lead
from strata.engine.remote_ranks import Ranks
from strata.engine.stage_calls import CALLS
from strata.engine.stage_line import StageLine
from strata.engine.stage_loading import LoadedStage
from strata.engine.stage_process import serve_part
from strata.settings import EngineSettings
from strata.weights.opening import open_model

RANKS, SLOTS, CONTEXT = 2, 4, 256
SETTINGS = EngineSettings(
    stages=True,
    device="cpu",
    slots=SLOTS,
    context=CONTEXT,
    threads=1,
    groups=2,
    chunk_rows=64,
    parked_gib=0.05,
    checkpoint_gib=0.01,
)


def ranks_at(rank: int, port: int) -> Ranks:
    """Of two processes here, without torchrun."""
    return Ranks(rank, RANKS, rank, "127.0.0.1", port, is_hosted=False)


def led(joined: Joined, model: Path) -> tuple[LoadedStage, list[StageLine]]:
    """For rank 0: the model over both."""
    opened = rank_of(open_model(model, "none"), SETTINGS, joined.ranks)
    meeting, lines = lead(joined, opened.offer, opened.plan)
    return load_leading(opened.files, opened.card, meeting, lines, opened.wishes), lines


def main(port: int, model: Path) -> None:
    """Rank 1, until rank 0 ends it."""
    ranks = ranks_at(1, port)
    (line,) = join(ranks, CALLS, seconds=60).lines
    opened = rank_of(open_model(model, "none"), SETTINGS, ranks)
    meeting = follow(ranks, line, opened.offer, opened.plan)
    assert isinstance(meeting, Meeting)
    part, loaded = load_following(opened.files, opened.card, meeting, opened.wishes, SETTINGS)
    line.send(loaded)
    serve_part(line, part)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
