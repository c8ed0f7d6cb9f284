"""Tiny models whose prompts pass a stage in chunks, with all experts there or in tiers. Knows no test."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strata.engine.chunk_loading import make_chunks
from strata.engine.graphs import WindowGraphs
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.experts.store import ExpertStore
from strata.experts.tiers import ExpertTiers, WindowSize
from strata.models.device.describe import describe
from strata.models.device.description import SparseMlp
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from tests.engine.stages import CPU, described
from tests.engine.tiered_stages import Tiering, built, share_table, sparse_layers, store_of

CHUNKED = ("qwen4_exp", "qwen3_5_moe", "qwen3_moe", "llama")


def chunked_model(
    name: str,
    slots: int = 2,
    context: int = 512,
    capacity: int = 256,
    device: torch.device = CPU,
    steps: ReadSteps | None = None,
    kind: CellKind = CellKind.BF16,
) -> StageModel:
    """All experts on the device."""
    model, description = described(name, device)
    stage = Stage(description, StageSizes(slots, context, kv_kind=kind))
    chunks = make_chunks(stage, capacity, None)
    return StageModel(stage, WindowGraphs(stage).run, model.config, model.experts_per_row, chunks, steps)


@contextmanager
def chunked_in_tiers(
    name: str,
    choice: str,
    tiering: Tiering,
    slots: int = 2,
    context: int = 512,
    capacity: int = 256,
    steps: ReadSteps | None = None,
) -> Iterator[tuple[StageModel, ExpertStore]]:
    """Some experts in seats, the others in main memory; on CPU tensors."""
    model, description = built(name, choice)
    first = description.layers[sparse_layers(description)[0]].mlp
    assert isinstance(first, SparseMlp)
    store = store_of(name, choice, tiering)
    with Pool(1) as pool:
        tiers = ExpertTiers(store, pool, CPU, WindowSize(32, first.experts_per_token))
        tiers.set_share(share_table(tiers, tiering.in_place))
        try:
            stage = Stage(describe(model, CPU, tiers), StageSizes(slots, context))
            chunks = make_chunks(stage, capacity, store)
            yield StageModel(stage, stage.run, model.config, model.experts_per_row, chunks, steps), store
        finally:
            tiers.close()
