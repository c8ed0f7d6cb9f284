"""Windows without a GPU are run op by op; what is captured on one follows from the buckets."""

import torch

from strata.engine.graphs import WindowGraphs, wanted_graphs, warm_up
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from tests.gpu.tiny_models import tiny_model


def test_every_variant_of_a_bucket_is_captured_and_reads_in_the_largest_alone() -> None:
    model = tiny_model("llama", "none").build(torch.device("cpu"))[1]
    wanted = wanted_graphs(Stage(model, StageSizes(1, 512), (1, 4, 32)))
    others = {Variant.WINDOW, Variant.UNFILTERED_WINDOW, Variant.FORWARD, Variant.COMMIT}
    assert set(wanted) == {*((variant, bucket) for bucket in (1, 4, 32) for variant in others), (Variant.READ, 32)}
    assert len(wanted) == len(set(wanted))


def test_the_twins_run_as_the_stage_does() -> None:
    model = tiny_model("llama", "none").build(torch.device("cpu"))[1]
    stage = Stage(model, StageSizes(1, 512), (1, 4))
    graphs, found = WindowGraphs(stage), []
    for run in (graphs.run, stage.run):
        stage.set_rows(4, [RowsPart(0, 0, [5, 6, 7])])
        run(Variant.FORWARD, 4)
        found.append(stage.to_host(stage.logits(4)[:3]))
    assert torch.equal(*found)
    assert bool(found[0].isfinite().all())


def test_a_warm_up_runs_everything_once_tells_how_far_it_is_and_changes_no_state() -> None:
    model = tiny_model("qwen4_exp", "none").build(torch.device("cpu"))[1]
    stage = Stage(model, StageSizes(2, 512), (1, 4))
    stage.set_rows(4, [RowsPart(0, 0, [5, 6, 7])])
    stage.read(4)
    state = stage.state
    tensors = (state.delta, state.conv_tail, state.history, state.ngram_tail, stage.variables.words)
    before = [tensor.clone() for tensor in tensors]
    ran: list[tuple[Variant, int]] = []
    told: list[tuple[str, int, int]] = []
    run = stage.run

    def note(variant: Variant, bucket: int) -> None:
        ran.append((variant, bucket))
        run(variant, bucket)

    stage.run = note  # type: ignore[method-assign]
    warm_up(stage, lambda *progress: told.append(progress), steps_behind=3)
    count = len(wanted_graphs(stage))
    assert tuple(ran) == wanted_graphs(stage)
    assert told == [("preparing windows", done, count + 3) for done in range(count + 1)]
    assert all(torch.equal(*pair) for pair in zip(before, tensors, strict=True))
    assert any(tensor.any() for tensor in before)
