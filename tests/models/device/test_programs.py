"""A program is the walk over a model's layers: which launches, in which order, over which shared buffers."""

from functools import cache

import pytest
import torch

from strata.kernels.attention_rows import rotation_table
from strata.kernels.window_rows import WindowRows
from strata.models.device.buffers import Buffers
from strata.models.device.description import DenseMlp, DeviceModel, SparseMlp
from strata.models.device.launches import Program, Workspace
from strata.models.device.mixers import append_attention
from strata.models.device.mlps import readers_of
from strata.models.device.programs import ModelProgram, build_program
from strata.models.device.state import DeviceState
from strata.models.device.walk import Readers, Walk
from strata.quant.cell_codes import CellKind
from tests.gpu.tiny_models import tiny_model
from tests.kernels.delta_cases import ANY

CPU = torch.device("cpu")
SLOTS = 2


@cache
def described(family: str) -> DeviceModel:
    return tiny_model(family, "none").build(CPU)[1]


def buffers_of(family: str, *counts: int) -> list[Buffers]:
    """Buffers of several buckets, the largest first."""
    model, workspace = described(family), Workspace(CPU)
    state = DeviceState.empty(model.sizes, SLOTS, 64, CellKind.BF16, CPU)
    rotation = rotation_table(model.frequencies, state.cells, CPU)
    return [Buffers(model, state, rotation, WindowRows.empty(rows, SLOTS, CPU), workspace) for rows in counts]


def program_of(family: str) -> ModelProgram:
    return build_program(buffers_of(family, 4)[0], ANY, torch.zeros(SLOTS, dtype=torch.int32))


def steps(program: Program, layer: int | None) -> list[str]:
    return [launch.step for launch in program if launch.layer == layer]


def test_a_layer_is_read_mixed_read_again_and_passed_to_its_experts() -> None:
    program = program_of("qwen4_exp")
    assert steps(program.layers, None) == ["embed"]
    gates = ["add, norm", "gates down", "gates up, mix"]
    mlp = [f"mlp: {step}" for step in gates]
    experts = [f"experts: {step}" for step in ("router, shared gate, up", "route", "rows")]
    mixer = [f"mixer: {step}" for step in gates]
    delta = [f"delta: {step}" for step in ("in", "rule", "out")]
    assert steps(program.layers, 1) == [*mixer, *delta, *mlp, *experts]
    attention = [f"attention: {step}" for step in ("in", "prepare", "choose", "attend", "out")]
    assert steps(program.layers, 3) == [*mixer, *attention, *mlp, *experts]
    ngrams = [f"n-grams: {step}" for step in ("add, norm", "gather", "key", "value", "finish")]
    assert steps(program.layers, 0) == [*ngrams, *mixer, *delta, *mlp, *experts]
    assert steps(program.head, None) == ["head: add, norm", "head: gates down", "head: gates up, mix", "head"]
    assert steps(program.commit, None) == ["commit: delta", "commit: n-grams"]


def test_a_plain_decoder_has_no_gates_no_indexer_and_nothing_to_commit() -> None:
    program = program_of("llama")
    attention = [f"attention: {step}" for step in ("in", "prepare", "attend", "out")]
    mlp = ["mlp: add, norm", "mlp: gate, up", "mlp: hidden", "mlp: down"]
    assert steps(program.layers, 1) == ["mixer: add, norm", *attention, *mlp]
    assert program.commit == []


def test_buckets_share_their_large_buffers() -> None:
    large, small = buffers_of("qwen4_exp", 8, 2)
    for buffers in (large, small):
        build_program(buffers, ANY, torch.zeros(SLOTS, dtype=torch.int32))
    for name in ("logits", "streams", "stored_delta", "stored_ngrams"):
        assert getattr(large, name).data_ptr() == getattr(small, name).data_ptr()
    assert small.logits.shape == (2, described("qwen4_exp").vocabulary)
    assert large.stored_delta.shape[:2] == (3, 8)


def test_rooms_are_made_once_for_readers_of_one_kind() -> None:
    buffers, model = buffers_of("qwen4_exp", 4)[0], described("qwen4_exp")
    layouts = [model.head.parts[0].layout]
    first = buffers.room("mixed", layouts)
    assert buffers.room("mixed", layouts) is first
    assert buffers.room("mixed", layouts, reads_plain=True) is not first
    assert first.plain is not None
    assert first.plain.shape == (4, model.hidden)


def test_the_readers_of_an_mlp_are_all_that_multiply_its_input() -> None:
    sparse, dense = described("qwen3_5_moe").layers[0].mlp, described("llama").layers[0].mlp
    assert isinstance(sparse, SparseMlp)
    assert isinstance(dense, DenseMlp)
    found = readers_of(sparse)
    assert found.read_plain  # by the shared expert's gate
    assert sparse.blobs.layout.gate in found.layouts
    assert sparse.router.parts[0].layout in found.layouts
    assert readers_of(dense) == Readers([dense.gate_up.parts[0].layout])


def test_what_a_mixer_leaves_is_added_by_the_next_read() -> None:
    walk = Walk(buffers_of("llama", 2)[0], ANY)
    layer = described("llama").layers[0]
    x = walk.read("mixer", layer.mixer_read, Readers.of(layer.mixer.projections))  # type: ignore[union-attr]
    append_attention(walk, layer.mixer, x)  # type: ignore[arg-type]
    left = walk.addition
    walk.read("mlp", layer.mlp_read, readers_of(layer.mlp))
    assert walk.launches[-1].run.args[1] is left  # type: ignore[attr-defined]
    assert walk.addition is not left


@pytest.mark.parametrize("family", ["qwen4_exp", "llama"])
def test_building_a_program_computes_nothing(family: str) -> None:
    buffers = buffers_of(family, 4)[0]
    buffers.logits.fill_(3.0)
    build_program(buffers, ANY, torch.zeros(SLOTS, dtype=torch.int32))
    assert buffers.logits.eq(3.0).all()
    assert buffers.streams.eq(0.0).all()
