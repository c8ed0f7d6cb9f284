"""`python -m tests.gpu.sanitized MODEL...`: every variant of tiny windows, launch by launch, for a checker of memory.

For people with an NVIDIA GPU and CUDA's compute-sanitizer:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck  --error-exitcode 9 python -m tests.gpu.sanitized
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck --error-exitcode 9 python -m tests.gpu.sanitized

Without torch's cache every tensor is an allocation of its own, so that the checker knows where each ends; graphs need
that cache, so nothing is captured here. A run without the checker first compiles the kernels, which is faster then.
With `--tiers` a quarter of the experts has seats, some are read in place and the CPU's threads compute the others.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strata.engine.flights import in_flight
from strata.engine.stage import RowsPart, Stage
from strata.kernels.compiled import settle_keys
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.native.pool import Pool
from tests.engine.tiered_stages import Tiering
from tests.gpu.tier_models import MODELS, in_tiers
from tests.gpu.tier_models import new_stage as tiered_stage
from tests.gpu.window_models import CUDA, EVERY_BUCKET, SIZES, TINY, buckets_of, device_model

PREFIX_ROWS = 40  # behind the budget of the tiny models' indexers


def run_all(stage: Stage) -> None:
    """Prompts into all slots, rows by the host with a commit, windows by the device in every bucket."""
    slots = range(stage.sizes.slots)
    for slot in slots:
        stage.reset_slot(slot)
        tokens = [(7 * row + slot) % stage.vocabulary for row in range(PREFIX_ROWS)]
        for start in range(0, PREFIX_ROWS, stage.buckets[-1]):
            stage.set_rows(stage.buckets[-1], [RowsPart(slot, start, tokens[start : start + stage.buckets[-1]])])
            with in_flight(stage, is_read=True):
                stage.read(stage.buckets[-1])
    for bucket in stage.buckets:
        stage.set_rows(bucket, [RowsPart(0, PREFIX_ROWS, [1] * bucket)])
        with in_flight(stage):
            stage.forward(bucket)
        stage.set_accepted([1])
        stage.commit(bucket)
    for bucket in stage.buckets:
        together = slots[: min(bucket, len(slots))]
        drafts = min(stage.sizes.most_drafts, bucket // len(together) - 1)
        for options in (ChoiceOptions(), ChoiceOptions(1.25, top_k=20, top_p=0.9, log_min_p=-4.0)):
            for slot in together:
                stage.set_reply(slot, ReplyStart(PREFIX_ROWS + 1, 1 + slot, 1 << 10, (), options))
            stage.set_plan(1, [PlannedPart(slot, (5,) * drafts) for slot in together])
            with in_flight(stage):
                stage.run(stage.window_variant(together), bucket)
            stage.wait()


@contextmanager
def opened(name: str, device: torch.device, *, has_tiers: bool) -> Iterator[Stage]:
    """The stage of a model, all of whose experts lie on the device or a quarter of them."""
    if not has_tiers:
        yield Stage(device_model(name, device), SIZES, buckets_of(name))
        return
    with Pool(2) as pool, in_tiers(name, Tiering(0.25, 0.3), pool, device) as found:
        yield tiered_stage(found.model)
        counts = found.tiers.counts()
        assert counts.cpu.experts > 0, "nothing was asked of the CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(TINY)}; with --tiers of {', '.join(MODELS)}")
    parser.add_argument("--tiers", action="store_true")
    arguments = parser.parse_args()
    settle_keys()  # kernels that others compiled are found
    for name in arguments.models or [MODELS[0] if arguments.tiers else EVERY_BUCKET]:
        with opened(name, CUDA, has_tiers=arguments.tiers) as stage:
            run_all(stage)
            assert torch.isfinite(stage.logits(stage.buckets[-1])).all(), f"{name}: logits are not finite"
            told = ", ".join(map(str, stage.buckets))
            print(f"{name}: windows of {told} rows ran, all numbers are finite", flush=True)


if __name__ == "__main__":
    main()
