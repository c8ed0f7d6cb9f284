"""Keys and values of every kind: C++ and torch agree, reads are windows, and answers are as near as the kind allows."""

from functools import cache
from typing import Any

import pytest
import torch

from strata.models.base import LogitRows, Segment
from strata.models.cell_kind import with_cells
from strata.models.families import family_of
from strata.models.fast.attach import attach_fast_windows
from strata.models.fast.loading import open_packed_weights
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from strata.weights.source import MemorySource
from tests.models.fast.twins import needs_library
from tests.models.test_qwen3_contract import even_config, random_tensors
from tests.models.tiny_qwen4_exp import decode_one_by_one, tiny_config
from tests.random_text import text_of

pytestmark = needs_library

STORED = [kind for kind in CellKind if kind is not CellKind.F32]
# relative error of logits against float64 with cells as computed
ALLOWED = {CellKind.BF16: 0.003, CellKind.INT8: 0.01, CellKind.K8V4: 0.1, CellKind.Q4: 0.1}
# the same against float64 with cells of the kind: where a value lies between two levels, one road may take the other
NEIGHBOURS = {CellKind.BF16: 2e-4, CellKind.INT8: 2e-4, CellKind.K8V4: 2e-3, CellKind.Q4: 2e-3}
ROWS, AFTER = 610, 5  # over the first split of keys; far behind the indexer's budget of 24 cells


def config_of(model: str) -> dict[str, Any]:
    """indexed: gathered cells, heads of 32; others: attention alone, or beside delta nets, with heads of that size."""
    if model == "indexed":
        return tiny_config(head_dim=32, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
                           ple_layer_ids=[1])  # fmt: skip
    sizes = {"num_hidden_layers": 2, "head_dim": int(model), "max_position_embeddings": 4096}
    return even_config("llama") | sizes


@cache
def parts_of(model: str, kind: CellKind) -> tuple[Any, Any, MemorySource]:
    config = config_of(model)
    family = family_of(config)
    return family, with_cells(family.parse_config(config), kind), MemorySource(random_tensors(config))


@cache
def native(model: str, kind: CellKind, threads: int = 1) -> Any:
    family, config, source = parts_of(model, kind)
    pool = Pool(threads, keeps_cores=False)
    made = family.build(config, open_packed_weights(source, source.names(), pool))
    assert attach_fast_windows(made, pool)
    return made


@cache
def slow(model: str, kind: CellKind, dtype: torch.dtype) -> Any:
    family, config, source = parts_of(model, kind)
    return family.load(config, source, dtype)


@cache
def exact(model: str, kind: CellKind) -> torch.Tensor:
    """Logits in float64 of the rows after the first ROWS."""
    return logits_after_read(slow(model, kind, torch.float64))


def logits_after_read(model: Any) -> torch.Tensor:
    text, state = text_of(ROWS + AFTER), model.new_state()
    model.read([Segment(state, text[:ROWS])], LogitRows.NONE)
    return decode_one_by_one(model, state, text[ROWS:]).double()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("model", ["indexed", "64", "128", "256"])
def test_both_roads_are_as_near_to_float64_as_the_kind_allows(model: str, kind: CellKind) -> None:
    for road in (native(model, kind), slow(model, kind, torch.float32)):
        found = logits_after_read(road)
        assert error(found, exact(model, CellKind.F32)) <= ALLOWED[kind]
        assert error(found, exact(model, kind)) <= NEIGHBOURS[kind]
    assert error(found, exact(model, CellKind.F32)) > 1e-5  # cells are rounded


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("model", ["indexed", "64"])
def test_reads_have_the_bits_of_windows_of_any_slots_and_threads(model: str, kind: CellKind) -> None:
    text, lengths = text_of(140), (90, 140)
    answers = []
    for threads in (1, 2):
        made, states = native(model, kind, threads), []
        for length in lengths:
            read, windows = made.new_state(), made.new_state()
            made.read([Segment(read, text[: length - 8])], LogitRows.NONE)
            decode_one_by_one(made, windows, text[: length - 8])
            states.append(read)
            assert torch.equal(*(made.window([Segment(each, text[:3])]).output.logits for each in (read, windows)))
        segments = [Segment(state, text_of(rows, 1)) for state, rows in zip(states, (1, 4), strict=True)]
        alone = [made.window([segment]).output.logits for segment in segments]
        answers.append(made.window(segments).output.logits)
        assert torch.equal(answers[-1], torch.cat(alone))
    assert torch.equal(*answers)


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.Q4])
def test_states_pass_between_the_roads_and_take_the_kinds_bytes(kind: CellKind) -> None:
    text, made = text_of(80), native("64", kind)
    twin = slow("64", kind, torch.float32)
    expected, state, logits = decode_one_by_one(twin, twin.new_state(), text), made.new_state(), []
    for row, token in enumerate(text.split(1)):
        road = (made, twin)[row // 3 % 2]
        window = road.window([Segment(state, token)])
        road.commit(window, [1])
        logits.append(window.output.logits)
    assert error(torch.cat(logits), expected) <= NEIGHBOURS[kind]
    assert state.layers[0].bytes_used() == 512 * 2 * kind.head_bytes(64)  # 512 cells of 2 heads
