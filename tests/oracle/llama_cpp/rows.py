"""Logits of one GGUF file by four roads, the experts that were chosen on them, and the records in fixtures/.

theirs: llama.cpp. exact: our `read` in float64 over the values that the file holds, no activation rounded. read: the
same in float32. windows: the C++ library's, in packed codes with activations of 8 bits, as decoding computes.
Knows how a file is read by each side; which files there are is in `files.py`, how rows are kept in `kept.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strata.bench.llama_cpp import LlamaCppModel
from strata.models.base import LanguageModel, LogitRows, Segment
from strata.models.families import family_of
from strata.models.fast.attach import attach_fast_windows
from strata.models.fast.loading import open_packed_weights
from strata.native import library
from strata.native.pool import Pool
from strata.weights.gguf_source import open_gguf_model
from tests.oracle.llama_cpp.files import FileSpec, Weights, weights_digest
from tests.oracle.llama_cpp.kept import KeptRows, keep
from tests.oracle.llama_cpp.routes import RouteWatch

FIXTURES = Path(__file__).parent / "fixtures"
WINDOW_ROWS = 8
RENEW = "run make oracle, which renews the records with llama.cpp"
Routes = NDArray[np.int32]  # expert ids in rising order [sparse layers, rows, experts per token]


@dataclass(frozen=True)
class Road:
    """What one way of computing a file gave."""

    logits: NDArray[np.floating[Any]]  # [rows, vocabulary]
    routes: Routes


@dataclass(frozen=True)
class Record:
    """What llama.cpp gave, as it is kept."""

    kept: KeptRows
    routes: Routes


def theirs(file: Path, spec: FileSpec) -> Road:
    """llama.cpp's, every row of every passage, keys and values in float32."""
    watch = RouteWatch()
    model = LlamaCppModel(file, threads=1, context=512, exact=True, watch=watch.callback)
    rows = []
    for passage in spec.passages:
        model.clear()
        rows.append(model.read(passage, all_rows=True))
    model.close()
    return Road(np.concatenate(rows), watch.take())


def exact(file: Path, spec: FileSpec) -> Road:
    """Ours in float64."""
    return _watched(_load(file, torch.float64), lambda model: _by_reading(model, spec))


def read(file: Path, spec: FileSpec) -> Road:
    """Ours as prompts are read, in torch and in float32."""
    return _watched(_load(file, torch.float32), lambda model: _by_reading(model, spec))


def windows(file: Path, spec: FileSpec) -> Road | None:
    """Ours as tokens are decoded; None without the C++ library."""
    if not library.is_available():
        return None
    source, pool = open_gguf_model(file), Pool(1)
    family = family_of(source.config)
    model = family.build(family.parse_config(source.config), open_packed_weights(source, source.names(), pool))
    assert attach_fast_windows(model, pool), f"{spec.name} has no windows in C++"
    return _watched(model, lambda found: np.concatenate([_by_windows(found, each) for each in spec.passages]))


def record_path(spec: FileSpec) -> Path:
    """Where a file's record lies."""
    return FIXTURES / f"{spec.name}.npz"


def write_record(spec: FileSpec, road: Road) -> Record:
    """Keep llama.cpp's rows; those of the shipped model with a digest of the weights they belong to."""
    kept = keep(road.logits, spec.kept)
    digest = weights_digest() if spec.weights is Weights.SHIPPED else ""
    np.savez_compressed(
        record_path(spec),
        token_ids=kept.token_ids,
        codes=kept.codes,
        routes=road.routes.astype(np.uint8),
        weights=np.array(digest),
    )
    return Record(kept, road.routes)


def read_record(spec: FileSpec) -> Record:
    """What llama.cpp said. Fails if the shipped model is another one by now."""
    with np.load(record_path(spec)) as record:
        digest = str(record["weights"])
        is_same = spec.weights is not Weights.SHIPPED or digest == weights_digest()
        assert is_same, f"the shipped weights have changed: {RENEW}"
        return Record(KeptRows(record["token_ids"], record["codes"]), record["routes"].astype(np.int32))


def _load(file: Path, dtype: torch.dtype) -> Any:
    source = open_gguf_model(file)
    family = family_of(source.config)
    return family.load(family.parse_config(source.config), source, dtype)


def _watched(model: Any, compute: Callable[[Any], NDArray[np.floating[Any]]]) -> Road:
    seen: dict[int, list[torch.Tensor]] = {}

    def see(layer: int, expert_ids: torch.Tensor) -> None:
        seen.setdefault(layer, []).append(expert_ids.sort(dim=1).values)

    model.observe_routing(see)
    logits = compute(model)
    layers = [torch.cat(seen[layer]).numpy().astype(np.int32) for layer in sorted(seen)]
    return Road(logits, np.stack(layers) if layers else np.zeros((0, 0, 0), np.int32))


def _by_reading(model: LanguageModel, spec: FileSpec) -> NDArray[np.floating[Any]]:
    """Each passage by itself, so that its routes come in the order of its rows."""
    parts = [[Segment(model.new_state(), torch.tensor(passage))] for passage in spec.passages]
    return np.concatenate([model.read(part, LogitRows.ALL).logits.numpy() for part in parts])


def _by_windows(model: LanguageModel, passage: tuple[int, ...]) -> NDArray[np.floating[Any]]:
    state, rows = model.new_state(), []
    for start in range(0, len(passage), WINDOW_ROWS):
        window = model.window([Segment(state, torch.tensor(passage[start : start + WINDOW_ROWS]))])
        rows.append(window.output.logits.numpy().copy())
        model.commit(window, [len(rows[-1])])
    return np.concatenate(rows)
