"""Experts in C++: bits of the torch reference on every path, for any list of experts and rows; the pool's manners."""

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from strata.errors import EngineError
from strata.experts.pool import ExpertPool, ExpertRows, combine, group_by_expert
from strata.kernels.expert_rows import reference
from strata.native import isa, library
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout
from tests.kernels.random_matrices import KINDS, Experts, Kind, random_choices, random_experts, random_rows

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

BY_NAME = {kind.name: kind for kind in KINDS}
MIXED = [("q4_k", "q6_k"), ("q2_0", "q4_0"), ("iq4_xs", "bf16"), ("f32", "q8_0"), ("mxfp4", "mxfp4"), ("bf16", "f16")]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


def blob_layout(gate: Kind, down: Kind, hidden: int, width: int) -> BlobLayout:
    return BlobLayout(gate.layout(width, hidden), gate.layout(width, hidden), down.layout(hidden, width))


def aligned_blobs(experts: Experts) -> dict[int, torch.Tensor]:
    """The blobs by number, at multiples of 64 bytes."""
    memory = experts.blobs.memory
    room = torch.empty(memory.numel() + 64, dtype=torch.uint8)
    begin = -room.data_ptr() % 64
    room[begin : begin + memory.numel()] = memory
    stride = experts.blobs.stride
    return {n: room[begin + n * stride : begin + (n + 1) * stride] for n in range(experts.blobs.seats)}


def reference_rows(experts: Experts, choices: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.full((*choices.shape, x.shape[1]), float("nan"))
    for row, rank in torch.cartesian_prod(*(torch.arange(size) for size in choices.shape)).tolist():
        out[row, rank] = reference.expert_rows(*experts.matrices[int(choices[row, rank])], x[row : row + 1])[0]
    return out


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.mark.parametrize(("gate", "down"), [(kind.name, kind.name) for kind in KINDS if not kind.code.is_float] + MIXED)
def test_every_path_gives_the_bits_of_the_reference(gate: str, down: str, pool: Pool) -> None:
    for case, (hidden, width, rows) in enumerate([(256, 256, 1), (256, 512, 3), (512, 256, 9)]):
        layout = blob_layout(BY_NAME[gate], BY_NAME[down], hidden, width)
        experts = random_experts(case, layout, 4)
        choices, x = random_choices(case, rows, 2, 4), random_rows(case, rows, hidden) * 1e-2
        wanted = reference_rows(experts, choices, x)
        listed = group_by_expert(choices, aligned_blobs(experts))
        for name in isa.available():
            out = torch.full_like(wanted, float("nan"))
            with isa.forced(name):
                ExpertPool(pool, layout).compute(listed, x, out)
            assert same_bits(out, wanted), f"{gate}, {down}, {hidden} x {width}, {rows} rows, {name}"


def test_widths_that_fill_neither_tile_nor_run(pool: Pool) -> None:
    layout = blob_layout(BY_NAME["q4_0"], BY_NAME["bf16"], 160, 72)
    experts = random_experts(1, layout, 3)
    choices, x = random_choices(1, 40, 2, 3), random_rows(2, 40, 160) * 1e-2
    out = torch.full((40, 2, 160), float("nan"))
    ExpertPool(pool, layout).compute(group_by_expert(choices, aligned_blobs(experts)), x, out)
    assert same_bits(out, reference_rows(experts, choices, x))


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_do_not_show(threads: int, pool: Pool) -> None:
    layout = blob_layout(BY_NAME["q4_k"], BY_NAME["q6_k"], 256, 256)
    experts = random_experts(5, layout, 6)
    choices, x = random_choices(5, 12, 3, 6), random_rows(5, 12, 256) * 1e-2
    listed = group_by_expert(choices, aligned_blobs(experts))
    alone = torch.zeros(12, 3, 256)
    ExpertPool(pool, layout).compute(listed, x, alone)
    with Pool(threads, keeps_cores=False, spin_us=20) as other:
        for _ in range(30):
            out = torch.full_like(alone, float("nan"))
            ExpertPool(other, layout).compute(listed, x, out)
            assert same_bits(out, alone)


def test_slots_that_are_not_listed_are_not_touched(pool: Pool) -> None:
    layout = blob_layout(BY_NAME["q8_0"], BY_NAME["q8_0"], 64, 64)
    blobs = aligned_blobs(random_experts(1, layout, 2))
    out = torch.full((4, 64), 7.0)
    rows, slots = torch.tensor([0], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    ExpertPool(pool, layout).compute([ExpertRows(blobs[1], rows, slots)], torch.ones(1, 64), out)
    assert (out == 7).all(dim=1).tolist() == [True, True, False, True]


@pytest.mark.parametrize(("rows", "ranks", "hidden"), [(1, 10, 2560), (5, 3, 33), (40, 8, 1100)])
def test_combine_is_the_reference_and_never_reads_masked_rows(rows: int, ranks: int, hidden: int, pool: Pool) -> None:
    computed, weights = random_rows(1, rows * ranks, hidden).reshape(rows, ranks, hidden), torch.rand(rows, ranks)
    mask = torch.rand(rows, ranks) < 0.7
    computed[~mask] = float("nan")
    shared = random_rows(2, rows, hidden)
    for name in isa.available():
        with isa.forced(name):
            found = combine(pool, computed, weights, mask, shared)
            plain = combine(pool, computed.nan_to_num(), weights, None, shared)
        assert same_bits(found, reference.combine(computed, weights, mask, shared))
        everything = torch.ones_like(mask)
        assert same_bits(plain, reference.combine(computed.nan_to_num(), weights, everything, shared))


def test_bad_lists_are_refused(pool: Pool) -> None:
    layout = blob_layout(BY_NAME["q8_0"], BY_NAME["q8_0"], 64, 64)
    blobs = aligned_blobs(random_experts(1, layout, 1))
    runner, out, x = ExpertPool(pool, layout), torch.zeros(2, 64), torch.zeros(1, 64)

    def run(row: int, slot: int, blob: torch.Tensor = blobs[0]) -> None:
        indices = (torch.tensor([row], dtype=torch.int32), torch.tensor([slot], dtype=torch.int32))
        runner.compute([ExpertRows(blob, *indices)], x, out)

    with pytest.raises(EngineError, match="row 1 or slot 0 is out of range"):
        run(1, 0)
    with pytest.raises(ValueError, match="slot 2 of 2"):
        run(0, 2)
    with pytest.raises(ValueError, match="a blob must be"):
        run(0, 0, blobs[0][:-1])
    runner.compute([], x, out)


def test_idle_threads_use_no_cpu() -> None:
    with Pool(4, keeps_cores=False) as pool:
        layout = blob_layout(BY_NAME["q8_0"], BY_NAME["q8_0"], 64, 64)
        choices = torch.zeros(1, 1, dtype=torch.int64)
        listed = group_by_expert(choices, aligned_blobs(random_experts(1, layout, 1)))
        ExpertPool(pool, layout).compute(listed, torch.ones(1, 64), torch.zeros(1, 64))
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.02


def test_calls_from_several_threads_wait_for_each_other(pool: Pool) -> None:
    layout = blob_layout(BY_NAME["q4_0"], BY_NAME["q4_0"], 64, 64)
    experts = random_experts(1, layout, 4)
    choices, x = random_choices(1, 8, 2, 4), random_rows(1, 8, 64) * 1e-2
    listed, wanted = group_by_expert(choices, aligned_blobs(experts)), reference_rows(experts, choices, x)
    wrong: list[int] = []

    def caller() -> None:
        for round_ in range(50):
            out = torch.zeros(8, 2, 64)
            ExpertPool(pool, layout).compute(listed, x, out)
            if not same_bits(out, wanted):
                wrong.append(round_)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert wrong == []


def test_a_forked_child_computes_alone_and_leaves() -> None:
    layout = blob_layout(BY_NAME["q4_0"], BY_NAME["q4_0"], 64, 64)
    listed = group_by_expert(torch.zeros(1, 1, dtype=torch.int64), aligned_blobs(random_experts(1, layout, 1)))
    with Pool(3, keeps_cores=False) as pool:
        runner = ExpertPool(pool, layout)
        wanted, found = torch.zeros(1, 64), torch.zeros(1, 64)
        runner.compute(listed, torch.ones(1, 64), wanted)
        child = os.fork()
        if child == 0:
            runner.compute(listed, torch.ones(1, 64), found)
            pool.close()
            os._exit(0 if same_bits(found, wanted) else 1)
        assert os.waitpid(child, 0)[1] == 0
        runner.compute(listed, torch.ones(1, 64), found)
        assert same_bits(found, wanted)
