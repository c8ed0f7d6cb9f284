"""A whole window by the Triton kernels in the interpreter beside the same window by their twins: every launch fits its
buffers. Bits and speeds are `python -m tests.gpu.windows`, on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.kernels import packed_rows, roads
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from tests.gpu.tiny_models import tiny_model
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter
BUCKET = 2


@contextmanager
def road(patch: pytest.MonkeyPatch, is_reference: bool) -> Iterator[None]:
    """Take the twins, or Triton on this CPU, where no op would choose it."""
    with patch.context() as context:
        for module in (roads, packed_rows):
            context.setattr(module, "is_reference_on", lambda _: is_reference)
        yield


def outcome(patch: pytest.MonkeyPatch, name: tuple[str, str], is_reference: bool) -> dict[str, torch.Tensor]:
    """Two rows of two slots are read and become state, then one slot's reply goes on by the device's choice."""
    with road(patch, is_reference):
        stage = Stage(tiny_model(*name).build(torch.device("cpu"))[1], StageSizes(2, 512, 1), (BUCKET,))
        stage.set_rows(BUCKET, [RowsPart(1, 0, [5]), RowsPart(0, 0, [9])])
        stage.run(Variant.FORWARD, BUCKET)
        found = {"logits": stage.to_host(stage.logits(BUCKET))}
        stage.set_accepted([1, 1])
        stage.run(Variant.COMMIT, BUCKET)
        stage.set_reply(1, ReplyStart(1, 11, 5, (), ChoiceOptions()))
        stage.set_plan(1, [PlannedPart(1, (4,))])
        stage.run(Variant.WINDOW, BUCKET)
    return found | {"window": stage.logits(BUCKET), "delta": stage.state.delta, "results": stage.results.words.float()}


@pytest.mark.parametrize("name", [("llama", "code4"), ("qwen4_exp", "code8")], ids="-".join)
def test_triton_gives_the_windows_of_the_twins(monkeypatch: pytest.MonkeyPatch, name: tuple[str, str]) -> None:
    wanted, found = (outcome(monkeypatch, name, is_reference) for is_reference in (True, False))
    for what, values in wanted.items():
        assert torch.allclose(found[what], values, rtol=1e-4, atol=1e-5), what
    assert torch.equal(found["results"], wanted["results"])
