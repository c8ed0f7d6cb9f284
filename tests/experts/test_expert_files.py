"""Experts in files: windows get the bits that all of them in memory give, or a sentence; never another byte."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch

from strata.errors import WeightFileError
from strata.experts import expert_files
from strata.experts.arena import Arena, load_arena
from strata.experts.doorbell import DoorbellService, DoorbellState, LayerExperts
from strata.experts.expert_files import ReadCache, ReadCounters, filed_layers, filing_problem
from strata.experts.pool import ExpertPool, group_by_expert
from strata.hardware import MemoryFacts
from strata.kernels.expert_plan.tables import Mailbox
from strata.native import library
from strata.native.pool import Pool
from strata.weights.opening import open_model
from tests.experts.busy_pool import stick
from tests.experts.filed_experts import EXPERTS, HIDDEN, NAMES, FileOfExperts, cut, touched, unreadable
from tests.experts.test_doorbell import Played
from tests.experts.test_pool import same_bits
from tests.kernels.random_matrices import random_choices, random_rows
from tests.weights.gguf_models import directory, gguf

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

ROWS, RANKS = 4, 3
PLENTY = MemoryFacts(1 << 40, 1 << 40)
CHANGED = "the model file changed while it was in use: start again"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> FileOfExperts:
    return FileOfExperts(tmp_path / "experts.gguf")


class Filed:
    """A service over a file's experts, of which `in_ram` lie in memory, and what it must answer."""

    def __init__(
        self,
        file: FileOfExperts,
        pool: Pool,
        blobs: int,
        in_ram: tuple[int, ...] = (),
        limit_s: float = 30.0,
        is_spoilt: bool = False,
    ) -> None:
        self.pool, self.source = pool, file.source()
        if not is_spoilt:
            self.arena: Arena = load_arena(self.source, PLENTY, threads=1)
        layouts = [self.source.layout(name) for name in NAMES]
        memory = torch.zeros(blobs * max(layout.total_bytes for layout in layouts) + 8, dtype=torch.uint8)
        self.reads = ReadCache(filed_layers(self.source), memory)
        self.layers = [
            LayerExperts(
                layout,
                [self.arena.address(name, n) if n in in_ram else 0 for n in range(self.source.count(name))],
            )
            for name, layout in zip(NAMES, layouts, strict=True)
        ]
        self.mailbox = Mailbox.create(ROWS, RANKS, layouts[0].gate.columns)
        self.window = Played(self.mailbox)
        self.service = DoorbellService(pool, self.layers, [self.mailbox], limit_s, reads=self.reads)
        self.service.begin(0)

    def ask(self, layer: int, choices: torch.Tensor, x: torch.Tensor) -> DoorbellState:
        """One request; its rows are in the mailbox."""
        self.window.ask(layer, choices, x)
        self.window.wait(self.window.door.value)
        return self.service.state(0)

    def require_right(self, layer: int, choices: torch.Tensor, x: torch.Tensor) -> None:
        """Of an answer that did not fail."""
        name = NAMES[layer]
        blobs = {n: self.arena.blob_bytes(name, n) for n in range(self.source.count(name))}
        wanted = torch.zeros(*choices.shape, x.shape[1])
        ExpertPool(self.pool, self.layers[layer].layout).compute(group_by_expert(choices, blobs), x, wanted)
        assert same_bits(self.mailbox.out[: len(x)], wanted)

    def close(self) -> None:
        self.service.close()
        self.reads.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., Filed]]:
    """Makes services that are closed behind the test."""
    made: list[Filed] = []

    def make(*arguments: object, **named: object) -> Filed:
        made.append(Filed(*arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_experts_are_read_to_the_bytes_that_a_load_makes(file: FileOfExperts, pool: Pool) -> None:
    source = file.source()
    arena = load_arena(source, PLENTY, threads=1)
    with ReadCache(filed_layers(source), torch.empty(0, dtype=torch.uint8)) as reads:
        for layer, name in enumerate(NAMES):
            blobs = torch.zeros(EXPERTS, source.layout(name).total_bytes, dtype=torch.uint8)
            order = [4, 0, 5, 2]
            reads.fill(pool, layer, order, [blobs[expert] for expert in order])
            assert torch.equal(blobs[order], arena.blobs(name)[order])
            assert not blobs[[1, 3]].any()
        assert reads.counters() == ReadCounters(), "nobody asked for these"


def pages_in_turn(cache: OrderedDict[tuple[int, int], None], room: int, wanted: list[tuple[int, int]]) -> int:
    """What a cache of so many blobs reads of one request, least recently used ones giving way."""
    reads = 0
    while wanted:
        some, wanted = wanted[:room], wanted[room:]
        missing = [each for each in some if each not in cache]
        for each in some:
            if each in cache:
                cache.move_to_end(each)
        for each in missing:
            if len(cache) == room:
                cache.popitem(last=False)
            cache[each] = None
        reads += len(missing)
    return reads


@pytest.mark.parametrize("in_ram", [(), (1, 4)])
@pytest.mark.parametrize("blobs", [1, 2, 5, 8, 12])
def test_windows_are_answered_right_out_of_a_cache_of_any_size(
    blobs: int, in_ram: tuple[int, ...], file: FileOfExperts, pool: Pool, opened: Callable[..., Filed]
) -> None:
    """Two layers whose blobs differ in size take each other's room; what is used longest ago goes first."""
    filed, expected, wanted_reads = opened(file, pool, blobs, in_ram), OrderedDict[tuple[int, int], None](), 0
    for number in range(40):
        layer, rows = number % 2, 1 + number % ROWS
        choices, x = random_choices(number, rows, RANKS, EXPERTS), random_rows(number, rows, HIDDEN) * 1e-2
        assert filed.ask(layer, choices, x).failures == 0
        filed.require_right(layer, choices, x)
        asked = [(layer, expert) for expert in choices.unique().tolist() if expert not in in_ram]
        wanted_reads += pages_in_turn(expected, blobs, asked)
        assert filed.reads.counters().experts == wanted_reads
    found = filed.reads.counters()
    assert 0 < found.bytes < found.experts * max(filed.source.layout(name).total_bytes for name in NAMES)
    assert found.ns > 0
    if blobs >= 8:
        assert found.experts < filed.service.counters().experts / 2, "what was read stays"


def test_an_expert_that_moves_between_memory_and_file_keeps_its_bits(
    file: FileOfExperts, pool: Pool, opened: Callable[..., Filed]
) -> None:
    filed = opened(file, pool, 4)
    for number in range(30):
        choices, x = random_choices(number, ROWS, RANKS, EXPERTS), random_rows(number, ROWS, HIDDEN) * 1e-2
        moving = number % EXPERTS
        filed.service.place(1, moving, 0 if number % 4 else filed.arena.address(NAMES[1], moving))
        assert filed.ask(1, choices, x).failures == 0
        filed.require_right(1, choices, x)


FAULTS: list[tuple[Callable[[FileOfExperts], AbstractContextManager[None]], str]] = [
    (touched, CHANGED),
    (cut, CHANGED),
    (unreadable, "Bad file descriptor"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_file_that_fails_fails_who_needs_it_and_nobody_else(
    fault: Callable[[FileOfExperts], AbstractContextManager[None]],
    words: str,
    file: FileOfExperts,
    pool: Pool,
    opened: Callable[..., Filed],
) -> None:
    filed, x = opened(file, pool, 12), random_rows(0, 1, HIDDEN) * 1e-2
    held, missing = torch.tensor([[0, 3, 5]]), torch.tensor([[0, 2, 5]])
    assert filed.ask(0, held, x).failures == 0
    with fault(file):
        found = filed.ask(0, missing, x)
        assert (found.failures, found.failed_layer) == (1, 0)
        assert found.failure == f"expert 2 in experts.gguf: {words}"
        assert filed.ask(0, held, x).failures == 1, "those that were read stay"
        filed.require_right(0, held, x)
        with pytest.raises(WeightFileError, match=rf"^the experts of model.layers.1.mlp cannot be read: .*{words}$"):
            filed.reads.fill(pool, 1, [1], [torch.empty(filed.layers[1].layout.total_bytes, dtype=torch.uint8)])
    assert filed.ask(0, missing, x).failures == 1, "it is asked for again and not taken from the failed read"
    filed.require_right(0, missing, x)
    assert filed.reads.counters().experts == 4


def test_bytes_of_a_file_that_changes_under_the_read_are_never_used(
    file: FileOfExperts, pool: Pool, opened: Callable[..., Filed]
) -> None:
    """All bytes become others between the look at the file and the first byte that is read: the threads are busy."""
    filed, x = opened(file, pool, 12), random_rows(0, 1, HIDDEN) * 1e-2
    held, missing = torch.tensor([[0, 3, 5]]), torch.tensor([[0, 2, 5]])
    assert filed.ask(0, held, x).failures == 0
    stuck = stick(pool, 0.5)
    filed.window.ask(0, missing, x)
    time.sleep(0.1)
    assert stuck.is_alive()
    file.path.write_bytes(np.full(file.path.stat().st_size, 17, np.uint8).tobytes())
    filed.window.wait(filed.window.door.value)
    stuck.join()
    found = filed.service.state(0)
    assert (found.failures, found.failure) == (1, f"expert 2 in experts.gguf: {CHANGED}")
    assert filed.ask(0, missing, x).failures == 2
    assert filed.ask(0, held, x).failures == 2, "those that were read stay"
    filed.require_right(0, held, x)


def test_a_scale_that_is_no_number_is_refused_when_it_is_read(
    tmp_path: Path, pool: Pool, opened: Callable[..., Filed]
) -> None:
    file = FileOfExperts(tmp_path / "spoilt.gguf", spoilt=(0, 4))
    filed, x = opened(file, pool, 12, is_spoilt=True), random_rows(0, 1, HIDDEN) * 1e-2
    words = "expert 4 in spoilt.gguf: it holds a scale that is no number, or that its format cannot hold"
    found = filed.ask(0, torch.tensor([[3, 4, 5]]), x)
    assert (found.failures, found.failure) == (1, words)
    with pytest.raises(WeightFileError, match=words):
        filed.reads.fill(pool, 0, [4], [torch.empty(filed.layers[0].layout.total_bytes, dtype=torch.uint8)])
    assert filed.ask(0, torch.tensor([[3, 1, 5]]), x).failures == 1


def test_what_cannot_be_read_from_files_is_said_with_what_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = ["model.layers.0.mlp."]
    source = open_model(gguf("qwen3_moe", "Q8_0"))
    assert filing_problem(source, layers) is None
    assert filing_problem(open_model(directory("qwen3_moe")), layers) == (
        "experts are read from GGUF files, and this model has none: `strata convert` makes one"
    )
    monkeypatch.setattr(expert_files, "packs", lambda number: number != 8)
    assert filing_problem(source, layers) == (
        "the experts of model.layers.0.mlp are stored as Q8_0, which the C++ library does not pack: a file of another "
        "type (`strata convert`), or memory for all experts, would do"
    )
    monkeypatch.setattr(expert_files.library, "is_available", lambda: False)
    assert filing_problem(source, layers) == "experts are read from files by the C++ library, which was not built"
