"""A whole window by the Triton kernels in the interpreter beside the same window by their twins: every launch fits its
buffers. Bits and speeds are `python -m tests.gpu.windows`, on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from strata.engine.chain import StageChain
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.kernels import packed_rows, roads
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.layer_split import LayerSplit
from tests.gpu.tiny_models import tiny_model
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter
BUCKET = 2
CPU = torch.device("cpu")


@contextmanager
def road(patch: pytest.MonkeyPatch, is_reference: bool) -> Iterator[None]:
    """Take the twins, or Triton on this CPU, where no op would choose it."""
    with patch.context() as context:
        for module in (roads, packed_rows):
            context.setattr(module, "is_reference_on", lambda _: is_reference)
        yield


def outcome(
    patch: pytest.MonkeyPatch, name: tuple[str, str], is_reference: bool, cuts: tuple[int, ...] = ()
) -> dict[str, torch.Tensor]:
    """Two rows of two slots are read and become state, then one slot's reply goes on by the device's choice."""
    built = tiny_model(*name).build(CPU)[0]
    split = LayerSplit.of(len(built.layers), cuts)
    with road(patch, is_reference):
        parts = describe_parts(built, split, [StagePlace(CPU)] * split.stages)
        stages = [Stage(part, StageSizes(2, 512, 1), (BUCKET,)) for part in parts]
        chain = StageChain.of(stages, [stage.run for stage in stages])
        chain.set_rows(BUCKET, [RowsPart(1, 0, [5]), RowsPart(0, 0, [9])])
        chain.run(Variant.FORWARD, BUCKET)
        found = {"logits": chain.logits_on_host(BUCKET, 0, BUCKET)}
        chain.set_accepted([1, 1])
        chain.run(Variant.COMMIT, BUCKET)
        chain.set_reply(1, ReplyStart(1, 11, 5, (), ChoiceOptions()))
        chain.set_plan(1, [PlannedPart(1, (4,))])
        chain.run(Variant.WINDOW, BUCKET)
    found |= {"window": chain.logits_on_host(BUCKET, 0, BUCKET), "results": chain.results.words.float()}
    return found | {"delta": torch.cat([stage.state.delta.flatten() for stage in stages])}


@pytest.mark.parametrize("name", [("llama", "code4"), ("qwen4_exp", "code8")], ids="-".join)
def test_triton_gives_the_windows_of_the_twins(monkeypatch: pytest.MonkeyPatch, name: tuple[str, str]) -> None:
    wanted, found = (outcome(monkeypatch, name, is_reference) for is_reference in (True, False))
    for what, values in wanted.items():
        assert torch.allclose(found[what], values, rtol=1e-4, atol=1e-5), what
    assert torch.equal(found["results"], wanted["results"])


def test_triton_gives_a_chain_the_bits_of_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, found = (outcome(monkeypatch, ("qwen3_moe", "code8"), False, cuts) for cuts in ((), (1,)))
    for what, values in wanted.items():
        assert torch.equal(found[what], values), what
