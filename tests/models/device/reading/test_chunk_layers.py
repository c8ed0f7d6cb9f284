"""A chunk's layer is a list of launches over memory that parts share: which, in which order, and where they begin."""

from collections.abc import Collection
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from strata.experts.feed import ExpertBatch, ExpertsAtHand, ResidentExperts
from strata.kernels.attention_rows import AttentionRowsShape, IndexerRowsShape, rotation_table
from strata.models.device.description import DeltaMixer, DeviceModel, SparseMlp
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import ChunkMemory, ChunkPlace, chunk_room
from strata.models.device.reading.layers import layer_legs, sparse_index
from strata.models.device.reading.mixers import ATTENDED, attend_runs
from strata.models.device.reading.mlps import GROUP_STEP, HOLD_STEP
from strata.models.device.reading.room import ReadRoom
from strata.models.device.reading.rows import NGRAM_ROWS, ChunkRows, Run
from strata.models.device.reading.support import chunk_problem
from strata.models.device.reading.walk import ReadWalk
from strata.models.device.state import DeviceState
from strata.quant.cell_codes import CellKind
from tests.gpu.tiny_models import tiny_model

CPU = torch.device("cpu")


@cache
def described(family: str) -> DeviceModel:
    return tiny_model(family, "none").build(CPU)[1]


def memory_of(family: str, capacity: int = 128) -> ChunkMemory:
    model = described(family)
    state = DeviceState.empty(model.sizes, 2, 512, CellKind.BF16, CPU)
    sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
    experts = ResidentExperts([torch.zeros(mlp.router.shape[0], dtype=torch.int64) for mlp in sparse])
    return ChunkMemory(model, state, rotation_table(model.frequencies, state.cells, CPU), experts, capacity)


def steps(family: str, layer: int) -> list[str]:
    memory = memory_of(family)
    return [each.step for each in memory.launches(100, memory.feed) if each.layer == layer]


def test_a_layer_is_read_mixed_read_again_and_passed_to_its_experts() -> None:
    gates = ["add, norm", "gates down", "low", "gates up", "mix"]
    mixer, mlp = ([f"{part}: {step}" for step in gates] for part in ("mixer", "mlp"))
    shared = [f"experts: {step}" for step in ("shared hidden", "shared down", "shared gate")]
    experts = ["experts: router, shared gate, up", "experts: route", GROUP_STEP, *shared]
    experts += [f"experts: {step}" for step in ("gate, up", "down", "combine")]
    delta = [f"delta: {step}" for step in ("in", "rule", "out")]
    assert steps("qwen4_exp", 1) == [*mixer, *delta, *mlp, *experts]
    attention = [f"attention: {step}" for step in ("in", "prepare", "choose", "attend", "out")]
    assert steps("qwen4_exp", 3) == [*mixer, *attention, *mlp, *experts]
    ngrams = [f"n-grams: {step}" for step in ("history", "add, norm", "gather", "round", "key", "value", "finish")]
    assert steps("qwen4_exp", 0)[: len(ngrams) + 2] == [*ngrams, "n-grams: move", "n-grams: add"]


def test_a_plain_decoder_has_no_gates_no_indexer_and_no_experts() -> None:
    attention = [f"attention: {step}" for step in ("in", "prepare", "attend", "out")]
    mlp = ["mlp: add, norm", "mlp: gate, up", "mlp: hidden", "mlp: down"]
    assert steps("llama", 1) == ["mixer: add, norm", *attention, *mlp]


@pytest.mark.parametrize("family", ["qwen4_exp", "llama"])
def test_building_launches_computes_nothing_and_takes_no_memory(family: str) -> None:
    memory = memory_of(family)
    held = {name: piece.data_ptr() for name, piece in memory.room._held.items()}
    list(memory.launches(128, memory.feed))
    assert {name: piece.data_ptr() for name, piece in memory.room._held.items()} == held
    assert all(piece.count_nonzero() == 0 for piece in memory.room._held.values())
    added_up = chunk_room(memory.model, memory.state, memory.rotation, 128)
    assert added_up.total_bytes == memory.room.total_bytes == sum(each.numel() for each in memory.room._held.values())


def test_a_part_begins_where_another_one_ended_for_good() -> None:
    room = ReadRoom(CPU)
    room.take("wide", 10, 7)
    room.take("wide", 10, 30, dtype=torch.bfloat16)
    assert room.take("words", 3, dtype=torch.int32).is_meta
    room.make()
    assert room.sizes == {"wide": 768, "words": 256}
    first, second = room.take("wide", 2, 7), room.take("wide", 10, 30, dtype=torch.bfloat16)
    assert first.data_ptr() == second.data_ptr() and first.shape == (2, 7)
    with pytest.raises(ValueError, match=r"the piece wide has 768 bytes, \[200\] of torch.float32 take 800"):
        room.take("wide", 200)
    with pytest.raises(ValueError, match="the piece other has 0 bytes"):
        room.take("other", 1)


def test_rows_are_cut_at_the_mark_and_for_n_grams() -> None:
    count = 2 * NGRAM_ROWS
    rows = ChunkRows(1, 100, count, (28,), torch.zeros(5, count, dtype=torch.int32))
    assert rows.runs == (Run(0, 28), Run(28, count))
    lengths = [run.count for run in rows.ngram_runs]
    assert lengths == [28, NGRAM_ROWS, NGRAM_ROWS - 28]
    words = rows.host_words(torch.arange(count))
    rows.words.copy_(words)
    window = rows.window(rows.ngram_runs[1])
    assert (window.tokens[0], window.slots[0], window.positions[0], window.first_rows[0]) == (28, 1, 128, 0)
    (segment,) = window.used_segments()
    assert (segment.slot, segment.start, segment.count) == (1, 0, NGRAM_ROWS)
    assert ChunkRows(0, 0, 5, (), rows.words).runs == (Run(0, 5),)


def test_one_chunk_at_a_time_and_only_of_rows_that_there_are() -> None:
    memory = memory_of("llama", capacity=64)
    chunk = memory.begin(ChunkPlace(0, 0, 64), torch.zeros(64, dtype=torch.int64))
    assert not chunk.is_through
    with pytest.raises(ValueError, match="a chunk is under way"):
        memory.begin(ChunkPlace(1, 0, 1), torch.zeros(1, dtype=torch.int64))
    chunk.end()
    chunk.end()
    for count, position in ((0, 0), (65, 0), (64, 500)):
        with pytest.raises(ValueError, match=f"{count} rows from {position} on"):
            memory.begin(ChunkPlace(0, position, count), torch.zeros(count, dtype=torch.int64))


def test_layers_with_experts_are_counted_by_themselves() -> None:
    model = described("qwen3_next")
    kinds = [isinstance(layer.mlp, SparseMlp) for layer in model.layers]
    assert not all(kinds)
    assert [sparse_index(model, index) for index in range(len(kinds))] == [
        sum(kinds[:index]) for index in range(len(kinds))
    ]


def test_models_whose_heads_no_read_multiplies_are_read_as_windows() -> None:
    assert chunk_problem(described("qwen4_exp")) is None
    narrow = described("qwen3_next")
    assert any(isinstance(layer.mixer, DeltaMixer) for layer in narrow.layers)
    assert narrow.delta_shape is not None
    problem = chunk_problem(narrow)
    is_narrow = min(narrow.delta_shape.key_dim, narrow.delta_shape.value_dim) < 16
    assert (problem == "heads of its delta nets have fewer than 16 values") is is_narrow


def test_a_layer_s_legs_hold_its_launches_and_end_where_others_may_go_between() -> None:
    memory = memory_of("qwen4_exp")
    walk: ReadWalk = memory._walk(ChunkPlace(0, 0, 100), {})
    found = []
    for index in range(4):
        legs = list(layer_legs(walk, index, memory.feed))
        assert [(leg.layer, leg.number) for leg in legs] == [(index, number) for number in range(len(legs))]
        found.append([leg.launches[-1].step for leg in legs])
    behind_experts = ["experts: shared gate", "experts: combine"]
    assert found == [
        ["n-grams: add", *behind_experts],
        behind_experts,
        ["n-grams: add", *behind_experts],
        ["attention: choose", *behind_experts, "history"],
    ]
    assert walk.take() == []


class _Sending(ExpertsAtHand):
    """Two experts at hand, then twice one on its way."""

    def batches(self, layer: int, needed: Collection[int] | None) -> list[ExpertBatch]:
        addresses = torch.zeros(8, dtype=torch.int64)
        sizes = ((2, 0), (1, 10), (1, 20))
        return [ExpertBatch(addresses, torch.arange(count, dtype=torch.int32), size) for count, size in sizes]


def test_a_tile_is_a_leg_between_waiting_for_it_and_letting_it_go() -> None:
    memory = memory_of("qwen3_moe")
    walk = memory._walk(ChunkPlace(0, 0, 100), {})
    legs = list(layer_legs(walk, 1, _Sending()))
    assert [leg.sent_bytes for leg in legs] == [0, 0, 0, 10, 20]
    compute = ["experts: gate, up", "experts: down"]
    sent = [HOLD_STEP, *compute, "experts: let go"]
    steps = [[launch.step for launch in leg.launches] for leg in legs[2:]]
    assert steps == [compute, sent, [*sent, "experts: combine"]]


@pytest.mark.parametrize(("position", "count"), [(0, 100), (0, 8192), (37, 8192), (32_768, 8192), (253_952, 8192)])
def test_rows_that_see_every_cell_attend_some_after_others(position: int, count: int) -> None:
    """Cut on the grid of positions, each about as much work; where rows choose blocks all of them are one piece."""
    cells = memory_of("llama").state.attention_cells(0)
    shape = AttentionRowsShape(32, 8, 128)
    runs = attend_runs(position, count, shape, cells)
    assert [run.start for run in runs[1:]] == [run.stop for run in runs[:-1]]
    assert (runs[0].start, runs[-1].stop) == (0, count)
    assert all((position + run.start) % 64 == 0 for run in runs[1:])
    work = [run.count * (position + count) * shape.query_width for run in runs]
    assert max(work) <= ATTENDED
    assert (len(runs) == 1) is (count * (position + count) * shape.query_width <= ATTENDED)
    chosen = replace(shape, indexer=IndexerRowsShape(4, 32, 4, 16))
    assert attend_runs(position, count, chosen, cells) == [Run(0, count)]


def test_attending_in_pieces_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    text, found = torch.arange(100) % 90, []
    for most in (ATTENDED, 1):
        monkeypatch.setattr("strata.models.device.reading.mixers.ATTENDED", most)
        memory = memory_of("llama")
        for start, count in ((0, 37), (37, 63)):  # the second one is cut at position 64
            steps: list[str] = []
            chunk = memory.begin(ChunkPlace(0, start, count), text[start : start + count])
            while not chunk.is_through:
                chunk.step(partial(_run, steps))
            chunk.end()
        assert steps.count("attention: attend") == len(memory.model.layers) * (1 if most == ATTENDED else 2)
        found.append(memory.room.take("streams", 63, memory.model.stream_width).clone())
    assert torch.equal(*found)


def _run(steps: list[str], launch: Launch) -> None:
    steps.append(launch.step)
    launch.run()
