"""A stage's windows on the torch road: the model's own logits, commits of right and wrong drafts, rows alone and in
company. The Triton road is held against the same stage by `python -m tests.gpu.windows`."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from strata.engine.stage import ROW_BUCKETS, RowsPart, Stage, StageSizes, Variant, bucket_of, buckets_for
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import OUT_OF_BUDGET, STOPPED, read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.base import Segment
from strata.models.device.description import DeviceModel
from strata.native import library
from strata.quant.cell_codes import CellKind
from tests.engine.stages import native_model
from tests.gpu.tiny_models import MODELS, VOCABULARY, tiny_model
from tests.random_text import text_of, token_ids_of

CPU = torch.device("cpu")
SLOTS, DRAFTS = 3, 3
BUCKETS = (1, 2, 4, 8)
Name = tuple[str, str]  # a family, and what its matrices become
every_model = pytest.mark.parametrize("name", MODELS, ids="-".join)
FAMILIES = (MODELS[1], MODELS[3], MODELS[5], MODELS[7])  # one model of each kind of layer and code
every_family = pytest.mark.parametrize("name", FAMILIES, ids="-".join)
KEPT = [*((name, CellKind.BF16) for name in FAMILIES), (MODELS[0], CellKind.Q4), (MODELS[7], CellKind.K8V4)]
every_kept = pytest.mark.parametrize(("name", "kind"), KEPT, ids=[f"{'-'.join(name)}-{kind}" for name, kind in KEPT])


@cache
def device_model(name: Name) -> tuple[Any, DeviceModel]:
    """The model in torch over packed weights, and described for the device."""
    return tiny_model(*name).build(CPU)


def assert_close(name: Name, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Row by row. Float codes differ by rounding; of integer codes an activation may fall on the other side of a half,
    which stays in the state: tiny rows of two blocks are then off by percents."""
    errors = ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).sort().values
    middle, largest = (1e-5, 3e-5) if name[1] == "none" else (0.02, 0.2)
    assert float(errors[len(errors) // 2]) < middle
    assert float(errors[-1]) < largest


def new_stage(name: Name, kind: CellKind = CellKind.BF16) -> Stage:
    return Stage(device_model(name)[1], StageSizes(SLOTS, 512, DRAFTS, kind), BUCKETS)


def read(stage: Stage, slot: int, tokens: list[int], position: int = 0) -> None:
    """Make tokens state, eight rows at a time."""
    for start in range(0, len(tokens), 8):
        part = tokens[start : start + 8]
        stage.set_rows(8, [RowsPart(slot, position + start, part)])
        stage.read(8)


def rows_alone(stage: Stage, slot: int, position: int, tokens: list[int], bucket: int) -> torch.Tensor:
    stage.set_rows(bucket, [RowsPart(slot, position, tokens)])
    stage.forward(bucket)
    return stage.logits(bucket)[: len(tokens)].clone()


@every_model
def test_windows_are_those_of_the_model_in_torch(name: Name) -> None:
    """Reads, windows of several slots, and commits of some of their rows; of qwen4_exp beyond the indexer's budget."""
    model, stage = device_model(name)[0], new_stage(name, CellKind.F32)
    lengths, counts, accepted = (5, 29, 12), (1, 4, 3), (1, 2, 0)
    texts = [token_ids_of(length, length) for length in lengths]
    segments = []
    for slot, text in enumerate(texts):
        read(stage, slot, text)
        state = model.new_state()
        for start in range(0, len(text), 8):
            rows = torch.tensor(text[start : start + 8])
            model.commit(model.window([Segment(state, rows)]), [len(rows)])
        segments.append(Segment(state, text_of(counts[slot], 7 + slot)))
    parts = [RowsPart(slot, lengths[slot], each.token_ids.tolist()) for slot, each in enumerate(segments)]
    window = model.window(segments)
    stage.set_rows(8, parts)
    stage.forward(8)
    assert_close(name, stage.logits(8), window.output.logits)
    assert_close(name, stage.hidden(8), window.output.hidden)
    model.commit(window, accepted)
    stage.set_accepted(accepted)
    stage.commit(8)
    after = [Segment(each.state, text_of(2, 11 + slot)) for slot, each in enumerate(segments)]
    wanted = model.window(after).output.logits
    stage.set_rows(
        8, [RowsPart(slot, lengths[slot] + accepted[slot], each.token_ids.tolist()) for slot, each in enumerate(after)]
    )
    stage.forward(8)
    assert_close(name, stage.logits(8)[:6], wanted)


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@every_model
def test_windows_are_close_to_those_of_the_library(name: Name) -> None:
    native, stage, text = native_model(*name), new_stage(name, CellKind.F32), token_ids_of(32)
    state = native.new_state()
    for position in range(0, len(text), 4):
        tokens = text[position : position + 4]
        window = native.window([Segment(state, torch.tensor(tokens))])
        native.commit(window, [4])
        assert_close(name, rows_alone(stage, 1, position, tokens, 4), window.output.logits)
        stage.set_accepted([4])
        stage.commit(4)


@every_kept
def test_a_row_has_the_same_bits_in_every_bucket_and_company(name: Name, kind: CellKind) -> None:
    stage = new_stage(name, kind)
    for slot, length in enumerate((30, 9, 2)):
        read(stage, slot, token_ids_of(length, slot))
    first, rest = token_ids_of(1, 20), token_ids_of(3, 21)
    alone = rows_alone(stage, 0, 30, [*first, *rest], 4)
    assert torch.equal(rows_alone(stage, 0, 30, first, 1), alone[:1])
    assert torch.equal(rows_alone(stage, 0, 30, [*first, *rest], 8), alone)
    stage.set_rows(
        8, [RowsPart(2, 2, token_ids_of(2, 22)), RowsPart(0, 30, [*first, *rest]), RowsPart(1, 9, token_ids_of(1, 23))]
    )
    stage.forward(8)
    assert torch.equal(stage.logits(8)[2:6], alone)


@every_kept
def test_wrong_drafts_leave_no_trace(name: Name, kind: CellKind) -> None:
    stage = new_stage(name, kind)
    text = token_ids_of(36, 3)
    read(stage, 0, text[:28])
    read(stage, 1, text[:28])
    for position in range(28, 34):
        stage.set_rows(1, [RowsPart(0, position, text[position : position + 1])])
        stage.read(1)
    stage.set_rows(4, [RowsPart(1, 28, [*text[28:30], *token_ids_of(2, 50)])])
    stage.forward(4)
    stage.set_accepted([2])
    stage.commit(4)
    stage.set_rows(8, [RowsPart(1, 30, [*text[30:34], *token_ids_of(3, 51)])])
    stage.forward(8)
    stage.set_accepted([4])
    stage.commit(8)
    wanted = rows_alone(stage, 0, 34, text[34:36], 2)
    assert torch.equal(rows_alone(stage, 1, 34, text[34:36], 2), wanted)
    assert torch.equal(stage.state.history[0], stage.state.history[1])
    assert torch.equal(stage.state.delta[:, 0], stage.state.delta[:, 1])


def greedy(stage: Stage, slot: int, text: list[int], budget: int, stop_ids: tuple[int, ...] = ()) -> None:
    read(stage, slot, text[:-1])
    stage.set_reply(slot, ReplyStart(len(text) - 1, text[-1], budget, stop_ids, ChoiceOptions()))


def results_of(stage: Stage) -> list[Any]:
    return read_results(stage.results.words.tolist(), stage.segments, DRAFTS)[1]


@every_family
def test_the_device_chooses_the_same_tokens_with_drafts_right_and_wrong(name: Name) -> None:
    stage, text = new_stage(name), token_ids_of(12, 9)
    greedy(stage, 0, text, 8)
    one_by_one: list[int] = []
    while len(one_by_one) < 8:
        stage.set_plan(len(one_by_one), [PlannedPart(0)])
        stage.window(1)
        one_by_one += results_of(stage)[0].tokens
    greedy(stage, 1, text, 8)
    found: list[int] = []
    for drafts in (
        (one_by_one[0], one_by_one[1]),
        (),
        (one_by_one[4], (one_by_one[5] + 1) % VOCABULARY, one_by_one[6]),
        (),
    ):
        stage.set_plan(0, [PlannedPart(1, drafts)])
        stage.window(4)
        found += results_of(stage)[0].tokens
    assert found == one_by_one[: len(found)]
    assert len(found) == 7
    stage.set_plan(0, [PlannedPart(1)])
    stage.window(1)
    assert results_of(stage)[0].tokens == (one_by_one[7],)
    assert results_of(stage)[0].reason == OUT_OF_BUDGET
    state = stage.state.delta[:, 1].clone()
    stage.window(1)
    assert results_of(stage)[0].tokens == ()
    assert torch.equal(stage.state.delta[:, 1], state)


def test_a_stop_id_ends_a_reply_on_the_device() -> None:
    stage, text = new_stage(("llama", "code4")), token_ids_of(12, 9)
    greedy(stage, 0, text, 9)
    stage.set_plan(0, [PlannedPart(0)])
    stage.window(1)
    token = results_of(stage)[0].tokens[0]
    greedy(stage, 1, text, 9, (token,))
    stage.set_plan(1, [PlannedPart(1)])
    stage.window(1)
    assert results_of(stage)[0].tokens == (token,)
    assert results_of(stage)[0].reason == STOPPED


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.INT8])
def test_a_slot_that_is_copied_goes_on_as_the_other(kind: CellKind) -> None:
    stage, text = new_stage(("qwen4_exp", "none"), kind), token_ids_of(35, 4)
    read(stage, 2, text)
    stage.state.copy(2, 0, len(text))
    after = token_ids_of(2, 5)
    assert torch.equal(rows_alone(stage, 0, 35, after, 2), rows_alone(stage, 2, 35, after, 2))


def test_buckets_follow_from_slots_and_drafts() -> None:
    assert buckets_for(1, 0) == (1, 32)
    assert buckets_for(4, 0) == (1, 2, 3, 4, 32)
    assert buckets_for(2, 3) == (1, 2, 3, 4, 6, 8, 32)
    assert buckets_for(32, 8) == ROW_BUCKETS
    assert [bucket_of(rows) for rows in (1, 5, 9, 17, 32)] == [1, 6, 12, 24, 32]
    with pytest.raises(ValueError, match="33 rows"):
        bucket_of(33)


def test_rows_that_do_not_fit_are_refused() -> None:
    stage = new_stage(("llama", "code4"))
    for parts, wrong in (
        ([RowsPart(0, 0, [1] * 5)], "5 rows"),
        ([RowsPart(0, 0, [1]), RowsPart(0, 1, [1])], "different"),
        ([RowsPart(7, 0, [1])], "different"),
        ([RowsPart(0, 511, [1, 1])], "512 cells"),
        ([RowsPart(0, 0, [])], "none empty"),
    ):
        with pytest.raises(ValueError, match=wrong):
            stage.set_rows(4, parts)


def test_every_launch_of_a_window_has_a_name() -> None:
    program = new_stage(("qwen4_exp", "none")).launches(Variant.WINDOW, 4)
    assert all(launch.step and launch.kind for launch in program)
    assert {launch.kind for launch in program} == {"window", "delta", "delta with n-grams", "attention", "commit"}
    assert {launch.layer for launch in program} == {None, 0, 1, 2, 3}


def test_the_shortest_window_follows_from_the_replies() -> None:
    stage = new_stage(("llama", "none"))
    start = ReplyStart(0, 1, 4, (), ChoiceOptions(1.0, seed=1))
    filtered = replace(start, options=ChoiceOptions(1.0, top_k=2, seed=1))
    stage.set_reply(0, start)
    stage.set_reply(1, filtered)
    assert stage.window_variant([0]) is Variant.UNFILTERED_WINDOW
    assert stage.window_variant([0, 1]) is Variant.WINDOW
    stage.set_reply(1, replace(start, options=ChoiceOptions(top_k=2)))  # greedy: top-k rules nothing out
    assert stage.window_variant([0, 1]) is Variant.UNFILTERED_WINDOW
