"""What a model needs agrees with the published figures and with what a loaded model really holds."""

import math

import pytest
import torch

from strata.models.base import LanguageModel, Segment
from strata.models.cell_kind import with_cells
from strata.models.families import family_of
from strata.models.needs import (
    BARE_PROGRAM_BYTES,
    PROGRAM_BYTES,
    Part,
    count_parameters,
    part_of,
    place_in_ram,
    place_on_card,
    reading_bytes,
    state_bytes,
)
from strata.quant.cell_codes import CellKind
from strata.weights.presets import STYLES, preset_config, set_layers, text_part
from strata.weights.source import MemorySource

GIGA = 1e9


def shapes_of(family: str, preset: str, layers: int | None = None) -> dict[str, tuple[int, ...]]:
    config = preset_config(family, preset)
    if layers is not None:
        set_layers(config, layers)
    found = family_of(config)
    return found.expected_tensors(found.parse_config(config))


def test_the_published_models_figures() -> None:
    count = count_parameters(shapes_of("qwen4_exp", "published"), 10)
    assert count.by_part[Part.ROUTED] / GIGA == pytest.approx(120.8, abs=0.05)
    assert count.by_part[Part.DENSE] / GIGA == pytest.approx(4.3, abs=0.05)
    assert count.by_part[Part.NGRAM] / GIGA == pytest.approx(51.2, abs=0.05)
    assert count.active_routed / GIGA == pytest.approx(2.36, abs=0.005)
    state = state_bytes(preset_config("qwen4_exp", "published"), 4, CellKind.F32)
    assert pytest.approx(113e6, rel=0.01) == 36 * 48 * 128 * 128 * 4
    assert state.fixed == pytest.approx(113e6, rel=0.05)  # the rest: tails of convolutions


@pytest.mark.parametrize(
    ("family", "total", "active"), [("qwen3_moe", 30.5, 3.0), ("qwen3_next", 79.7, 3.6), ("qwen3_5_moe", 34.7, 3.0)]
)
def test_the_other_releases_have_the_size_in_their_names(family: str, total: float, active: float) -> None:
    experts_per_token = text_part(preset_config(family, "published"))["num_experts_per_tok"]
    count = count_parameters(shapes_of(family, "published"), experts_per_token)
    assert count.total / GIGA == pytest.approx(total, abs=0.1)
    assert count.active / GIGA == pytest.approx(active, abs=0.1)


def loaded(family: str, layers: int, kind: CellKind) -> LanguageModel:
    config = preset_config(family, "tiny")
    set_layers(config, layers)
    found = family_of(config)
    parsed = with_cells(found.parse_config(config), kind)
    tensors = {name: torch.zeros(shape) for name, shape in found.expected_tensors(parsed).items()}
    return found.load(parsed, MemorySource(tensors), torch.float32)


@pytest.mark.parametrize("family", STYLES)
@pytest.mark.parametrize(("layers", "kind"), [(3, CellKind.F32), (9, CellKind.BF16), (9, CellKind.K8V4)])
def test_state_is_what_a_loaded_model_holds(family: str, layers: int, kind: CellKind) -> None:
    config = preset_config(family, "tiny")
    set_layers(config, layers)
    model, rows = loaded(family, layers, kind), 512  # cells are made 512 at a time
    state = model.new_state()
    expected = state_bytes(config, 4, kind)
    history = 64  # ids of an n-gram's last tokens
    assert state.bytes_used() == pytest.approx(expected.fixed, abs=history)
    model.read([Segment(state, torch.zeros(rows, dtype=torch.int64))])
    attention_layers = layers if family == "qwen3_moe" else layers // 4
    pooled = 512 * 16 * 4 * attention_layers  # pooled keys grow in steps of 512 blocks
    assert expected.at(rows) - history <= state.bytes_used() <= expected.at(rows) + history + pooled


def test_every_tensor_is_in_one_part_and_every_byte_in_one_place() -> None:
    shapes = shapes_of("qwen4_exp", "tiny")
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    assert {part_of(name) for name in shapes} == set(Part)
    assert sum(count_parameters(shapes, 4).by_part.values()) == sum(sizes.values())
    for placement in (place_in_ram(sizes, 7, 10**9), place_in_ram(sizes, 7, 0), place_on_card(sizes, 7)):
        placed = placement.ram | {f"card {k}": v for k, v in placement.vram.items()} | placement.in_files
        programs = placement.ram["program"] + placement.vram.get("program", 0)
        assert sum(placed.values()) - programs == sum(sizes.values()) + 7


def test_large_tables_stay_in_the_files() -> None:
    sizes = {name: math.prod(shape) for name, shape in shapes_of("qwen4_exp", "tiny").items()}
    table = next(size for name, size in sizes.items() if part_of(name) is Part.NGRAM)
    assert place_in_ram(sizes, 0, table).in_files == {}
    assert place_in_ram(sizes, 0, table - 1).in_files == {"n-gram table": table}


def test_a_tied_embedding_is_read_for_every_token() -> None:
    shapes = {"model.embed_tokens.weight": (10, 4), "model.norm.weight": (4,)}
    assert count_parameters(shapes, 1).active_dense == 44
    assert count_parameters(shapes | {"lm_head.weight": (10, 4)}, 1).active_dense == 44


def test_what_a_read_works_with_is_counted() -> None:
    """The rows of a chunk between layers, and one tile's rows between projections: more only for wider models."""
    config = preset_config("qwen4_exp", "published")
    small, large = (reading_bytes(config, rows) for rows in (512, 8192))
    assert large - small == (8192 - 512) * 4 * 2560 * 4  # 40 KB a row
    assert 150e6 < small < 500e6
    assert place_in_ram({}, 0, 0, large).ram["program"] == BARE_PROGRAM_BYTES + large
    assert place_in_ram({}, 0, 0, reading_bytes(preset_config("llama", "tiny"), 512)).ram["program"] == PROGRAM_BYTES
