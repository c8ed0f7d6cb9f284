"""A tiny model over a stage here and one that a thread serves, as another process would. Knows no test."""

import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from strata.engine import stage_calls as calls
from strata.engine.chunk_loading import make_chunks
from strata.engine.graphs import WindowGraphs
from strata.engine.local_stage import LocalStage
from strata.engine.remote_chain import chunk_ways, place_of, remote_chains, ways_of
from strata.engine.remote_chunks import ServedChunks
from strata.engine.remote_copy import Channel, DistributedCopy
from strata.engine.remote_line import Line
from strata.engine.remote_loading import LedModel
from strata.engine.remote_reads import ReadStages
from strata.engine.stage import Stage
from strata.engine.stage_line import StageLine
from strata.engine.stage_process import ServedPart, serve_part
from strata.engine.stage_sizes import StageSizes
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.layer_split import LayerSplit
from tests.engine.stages import CPU, described

SIZES = StageSizes(slots=3, context=256)
CHUNK = 64


class QueuedCopy(DistributedCopy):
    """Both ends of a way, in two threads."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._queue: queue.Queue[list[torch.Tensor]] = queue.Queue()

    def send(self, found: Sequence[torch.Tensor]) -> None:
        self._queue.put([tensor.clone() for tensor in found])

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        for tensor, found in zip(wanted, self._queue.get(timeout=10), strict=True):
            tensor.copy_(found)


@contextmanager
def threaded_model(name: str) -> Iterator[LedModel]:
    """One group of slots; prompts pass in chunks of CHUNK rows."""
    model, whole = described(name)
    split = LayerSplit.of(len(whole.layers), (len(whole.layers) // 2,))
    parts = describe_parts(model, split, [StagePlace(CPU)] * 2)
    stages = [Stage(part, SIZES) for part in parts]
    memories = [make_chunks(stage, CHUNK) for stage in stages]
    own, other = (LocalStage(stage, WindowGraphs(stage).run, place_of(rank, 2)) for rank, stage in enumerate(stages))
    copies = [QueuedCopy(Channel(*ends, number)) for number, ends in enumerate(ways_of(2, 1))]
    (keeper,) = other.slot_keepers()
    ways = dict(enumerate(copies))
    served = ServedPart([other], keeper, ways, chunks=ServedChunks(stages[1], memories[1], keeper, ways))
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve_part, args=(Line(theirs, calls.CALLS), served))
    thread.start()
    line = StageLine.open(1, Line(ours, calls.ANSWERS))
    facts = calls.PartFacts(other.most_rows, whole.vocabulary, False, CHUNK, calls.KeptBytes.of(keeper))
    (chain,) = remote_chains([own], [(line, facts)], copies)
    led = LedModel(chain, chain.run, model.config, model.experts_per_row, memories[0])
    led.lead([line], ReadStages(stages[0], memories[0], [line], chunk_ways(copies, 2), CHUNK))
    yield led
    line.end()
    thread.join()
