"""Same prompt, same answer, wherever an expert is computed: seats, in place or on the CPU's threads, however slow."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from strata.engine.flights import in_flight
from strata.engine.stage import RowsPart, Stage, StageSizes
from strata.models.device.description import DeviceModel
from strata.native import library
from strata.native.pool import Pool
from tests.engine.tiered_stages import Tiering, built, tiered
from tests.experts.busy_pool import slowed
from tests.random_text import token_ids_of

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

TIERINGS = [
    *(Tiering(seats, in_place) for seats in (0.0, 0.25, 0.75) for in_place in (0.0, 0.3, 1.0)),
    Tiering(1.0),
    Tiering(0.25, 0.3, is_exclusive=True),
    *(Tiering(seats, 0.3 * (seats < 1), waits_in_stream=True) for seats in (0.0, 0.75, 1.0)),
]
# The CPU is given quantized rows by these models, and rows as they are where experts are in float codes.
QUANTIZED = [("qwen4_exp", "code4"), ("qwen3_moe", "code8")]
CASES = [
    *((*QUANTIZED[0], tiering) for tiering in TIERINGS),
    *((*QUANTIZED[1], tiering) for tiering in TIERINGS[::2]),  # every value of every field once more
    *(("qwen4_exp", "none", tiering) for tiering in (Tiering(0.0), Tiering(0.25, 0.3), Tiering(0.0, 1.0))),
    ("qwen3_next", "code4", Tiering(0.25, 0.3)),  # a layer between others has no experts
]
ROWS = (1, 3, 32)  # of windows; behind each other in one slot


def logits_of(model: DeviceModel) -> list[torch.Tensor]:
    """Of every row of some windows of a fresh slot, each committed."""
    stage = Stage(model, StageSizes(2, 64), (1, 4, 32))
    found, position = [], 0
    for rows in ROWS:
        bucket = stage.bucket_for(rows)
        with in_flight(stage):
            stage.set_rows(bucket, [RowsPart(1, position, token_ids_of(rows, seed=rows))])
            stage.forward(bucket)
        found.append(stage.logits(bucket)[:rows].clone())
        stage.set_accepted([rows])
        stage.commit(bucket)
        position += rows
    return found


@cache
def wanted(family: str, choice: str) -> list[torch.Tensor]:
    """What the model says with every expert on the device."""
    return logits_of(built(family, choice)[1])


def assert_same(found: list[torch.Tensor], family: str, choice: str) -> None:
    for mine, theirs in zip(found, wanted(family, choice), strict=True):
        assert torch.isfinite(mine).all()
        assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


@pytest.mark.usefixtures("library_products")
@pytest.mark.parametrize(("family", "choice", "tiering"), CASES)
def test_logits_are_those_of_experts_that_are_all_on_the_device(
    family: str, choice: str, tiering: Tiering, pool: Pool
) -> None:
    with tiered(family, choice, tiering, pool) as (_, model):
        assert_same(logits_of(model), family, choice)
        assert model.tiers is not None
        counts = model.tiers.counts()
        assert (counts.seats > 0) == (tiering.seats > 0)
        assert (counts.on_cpu > 0) == (counts.cpu.requests > 0) == (tiering.in_place < 1 and tiering.seats < 1)
        assert (counts.in_place > 0) == (tiering.in_place > 0)
        assert counts.on_cpu == counts.cpu.experts


def test_the_definition_on_the_device_gives_the_bits_of_the_library(pool: Pool) -> None:
    """Here the device multiplies in torch; in the tests beside this one by the library too, which is quicker."""
    wanted = logits_of(built("qwen4_exp", "code4")[1])
    with tiered("qwen4_exp", "code4", Tiering(0.25, 0.3), pool) as (_, model):
        for mine, theirs in zip(logits_of(model), wanted, strict=True):
            assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32))


@pytest.mark.usefixtures("library_products")
@pytest.mark.parametrize(("family", "choice"), QUANTIZED)
def test_a_slow_pool_changes_no_bit(family: str, choice: str, pool: Pool) -> None:
    with tiered(family, choice, Tiering(0.25), pool) as (_, model), slowed(pool):
        assert_same(logits_of(model), family, choice)


@pytest.mark.usefixtures("library_products")
@pytest.mark.parametrize("move", ["seats", "places"])
def test_experts_that_move_between_windows_change_no_bit(move: str, pool: Pool) -> None:
    family, choice = "qwen4_exp", "code4"
    with tiered(family, choice, Tiering(0.5, 0.3), pool) as (_, model):
        tiers = model.tiers
        assert tiers is not None
        turn = iter(range(1000))

        def before_launch(is_read: bool) -> None:
            """Before each launch another expert loses its seat, or its place in main memory if it has a seat."""
            assert not is_read
            layers, experts = tiers.asked.shape
            number = next(turn)
            for layer in range(layers):
                expert = number % experts
                if move == "seats":
                    tiers.set_resident(layer, expert, 0)
                elif tiers.tables[layer].resident[expert]:
                    tiers.set_in_ram(layer, expert, 0)

        tiers.follow(before_launch)
        for _ in range(2):
            assert_same(logits_of(model), family, choice)
        assert next(turn) == 2 * len(ROWS)
