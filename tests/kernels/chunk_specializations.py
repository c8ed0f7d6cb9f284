"""`python -m tests.kernels.chunk_specializations FAMILY`: which kernels of chunks would compile after the warm-up.

As `specializations.py`, without a GPU: launches only note the key under which Triton would compile them. Prints JSON.
"""

import json
import sys

import torch

from strata.engine.chunk_loading import compiling_launches, make_chunks
from strata.engine.stage import Stage, StageSizes
from strata.experts.feed import ResidentExperts
from strata.kernels import roads
from strata.models.device.describe import describe
from strata.models.device.description import SparseMlp
from strata.models.device.reading.chunks import ChunkMemory, ChunkPlace
from strata.models.device.reading.walk import KeptState
from strata.models.device.synthetic import SyntheticWeights
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from strata.weights.presets import STYLES, preset_config, set_fields, text_part
from tests.kernels.specializations import note_launches

CPU = torch.device("cpu")
FIELDS = {
    "qwen4_exp": ("hidden_size=256", "hc_lowrank=64", "num_experts=160", "indexer_budget=64", "ple_layer_ids=[2]"),
    "qwen3_5_moe": ("hidden_size=256", "linear_key_head_dim=32", "linear_value_head_dim=32"),
    "llama": ("hidden_size=256",),
}
# Rows, where they begin, and the row in front of which state is kept.
PLACES = ((1, 0, None), (2, 5, None), (17, 64, None), (33, 100, 28), (64, 64, None), (65, 0, 64), (130, 3, 61))
PLACES += ((256, 0, 192), (200, 311, 73), (255, 256, None))


def chunks_of(family: str) -> ChunkMemory:
    """Of a model of random weights whose shapes are as even as a release's."""
    config = preset_config(family, "tiny")
    set_fields(config, ["vocab_size=1024", *FIELDS[family]])
    if text_part(config).get("mtp_num_hidden_layers"):
        text_part(config)["mtp_num_hidden_layers"] = 0
    found = family_of(config)
    parsed = found.parse_config(config)
    weights = SyntheticWeights(found.expected_tensors(parsed), STYLES[found.name], CPU)
    kind = CellKind.Q4 if family == "qwen4_exp" else CellKind.BF16  # decoded for a chunk, or read where they lie
    stage = Stage(describe(found.build(parsed, weights), CPU), StageSizes(2, 512, kv_kind=kind), (32,))
    return make_chunks(stage, 256, None)


def pass_through(chunks: ChunkMemory, count: int, position: int, mark: int | None) -> None:
    """Launch a whole chunk of slot 1; one of an even number of rows is set aside in front of every layer."""
    parts = [whole[:, 1].clone() for whole in (chunks.state.delta, chunks.state.conv_tail, chunks.state.ngram_tail)]
    kept = KeptState(*parts, chunks.state.history[1:2].clone())
    states = {} if mark is None else {mark: kept}
    chunk = chunks.begin(ChunkPlace(1, position, count, tuple(states)), torch.zeros(count, dtype=torch.int64), states)
    room = [each.clone() for each in chunks.lasting(count)]
    while not chunk.is_through:
        if count % 2 == 0 and chunk.is_between_layers:
            chunk.set_aside(room)
            chunk.take_back(room)
        chunk.step(lambda launch: launch.run())
    list(chunk.logits(max(0, count - 67), lambda launch: launch.run()))
    chunk.end()


def main() -> None:
    chunks, keys = chunks_of(sys.argv[1]), set[tuple[str, str]]()
    note_launches(keys)
    roads.is_reference_on = lambda device: False  # type: ignore[assignment]
    roads.takes_reference = lambda tensor: False  # type: ignore[assignment]
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("strata.kernels.") and hasattr(module, "takes_reference"):
            module.takes_reference = lambda tensor: False  # type: ignore[attr-defined]
    for launch in compiling_launches(chunks):
        launch.run()
    warm = set(keys)
    for place in PLACES:
        pass_through(chunks, *place)
    sparse = [layer.mlp for layer in chunks.model.layers if isinstance(layer.mlp, SparseMlp)]
    assert isinstance(chunks.feed, ResidentExperts) and len(sparse) in (0, len(chunks.model.layers))
    late = sorted({name for name, _ in keys - warm})
    print(json.dumps({"warm": sorted({name for name, _ in warm}), "forms": len(warm), "late": late}))


if __name__ == "__main__":
    main()
