"""What the plan keeps for chunks holds what they really take, and not much more; and how long chunks are."""

import pytest
import torch

from strata.engine.chunk_reads import ChunkReads
from strata.engine.memory_plan import GIB
from strata.engine.reader_room import HISTORY_BYTES, aside_bytes, aside_room, fitting_chunk, reader_bytes, reader_room
from strata.engine.stage import Stage, StageSizes
from strata.models.device.describe import describe
from strata.models.device.reading.chunks import chunk_room
from strata.models.device.reading.support import chunk_problem
from strata.models.device.synthetic import SyntheticWeights
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from strata.weights.presets import STYLES, preset_config, set_fields, text_part
from tests.engine.chunked_stages import CHUNKED, chunked_model
from tests.gpu.tiny_models import FIELDS

CPU = torch.device("cpu")
WIDER = {
    "qwen4_exp": ("hidden_size=256", "hc_lowrank=64", "num_attention_heads=8", "num_experts=64"),
    "qwen3_5_moe": ("hidden_size=256", "num_experts=64", "linear_num_value_heads=16", "linear_key_head_dim=32"),
    "qwen3_moe": ("hidden_size=256", "num_experts_per_tok=8"),
    "llama": ("intermediate_size=1024",),
}


@pytest.mark.parametrize("family", WIDER)
@pytest.mark.parametrize("rows", [64, 1024])
def test_the_room_holds_what_chunks_take(family: str, rows: int) -> None:
    config = preset_config(family, "tiny")
    set_fields(config, ["vocab_size=1024", *WIDER[family]])
    if text_part(config).get("mtp_num_hidden_layers"):
        text_part(config)["mtp_num_hidden_layers"] = 0
    found = family_of(config)
    parsed = found.parse_config(config)
    weights = SyntheticWeights(found.expected_tensors(parsed), STYLES[found.name], CPU)
    model = describe(found.build(parsed, weights), CPU)
    assert chunk_problem(model) is None
    for kind in (CellKind.BF16, CellKind.INT8):
        stage = Stage(model, StageSizes(1, 1024, kv_kind=kind), (32,))
        taken = chunk_room(model, stage.state, stage.rotation, rows).total_bytes
        planned = reader_bytes(config, rows, 1024, kind)
        assert taken <= planned <= 1.25 * taken


@pytest.mark.parametrize("family", CHUNKED)
@pytest.mark.parametrize("rows", [64, 256])
def test_the_room_of_a_chunk_set_aside_holds_what_is_copied(family: str, rows: int) -> None:
    model = chunked_model(family, slots=4, context=256, capacity=rows)
    config = preset_config(family, "tiny")
    set_fields(config, FIELDS[family])
    assert isinstance(model.reads, ChunkReads)
    (reads,) = model.reads.line
    reads.make_room(1, None)
    assert reads.room.piece_bytes <= aside_bytes(config, rows) <= 1.25 * reads.room.piece_bytes + 2 * HISTORY_BYTES
    published = preset_config("qwen4_exp", "published")
    assert 335e6 < aside_bytes(published, 8192) < 337e6
    assert aside_room(published, 8192, stages=2).fixed == 2 * aside_bytes(published, 8192)


def test_only_cells_of_bf16_need_no_room_beside_them() -> None:
    published = preset_config("qwen4_exp", "published")
    rooms = {kind: reader_room(published, 2048, 262_144, kind) for kind in CellKind}
    decoded, in_place = rooms[CellKind.Q4], rooms.pop(CellKind.BF16)
    assert set(rooms.values()) == {decoded}
    assert decoded.per_position - in_place.per_position == 2 * 2 * 256 * 2  # keys and values of two heads
    assert abs(decoded.fixed - in_place.fixed) <= 1


def test_a_chunk_takes_a_modest_part_of_a_card() -> None:
    published = preset_config("qwen4_exp", "published")
    wanted = {
        gib: fitting_chunk(published, gib * GIB, None, 262_144, CellKind.BF16, GIB // 2) for gib in (6, 16, 24, 80)
    }
    assert wanted[80] == wanted[24] == 8192
    assert 64 <= wanted[6] < wanted[16] < 8192
    assert reader_bytes(published, 8192, 262_144, CellKind.BF16) < 2.5 * GIB
    assert fitting_chunk(published, GIB, 1024, 262_144, CellKind.BF16, 0) == 1024
