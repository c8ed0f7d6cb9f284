"""Logits of one GGUF file by llama.cpp and by Strata, and the records of them in fixtures/.

Knows how a file is read by each side; which files there are is in `files.py`, how rows are kept in `kept.py`.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from strata.bench.llama_cpp import LlamaCppModel
from strata.models.base import LanguageModel, LogitRows, Segment
from strata.models.families import family_of
from strata.models.fast.attach import attach_fast_windows
from strata.native import library
from strata.native.pool import Pool
from strata.weights.gguf_source import open_gguf_model
from tests.oracle.llama_cpp.files import FileSpec, weights_digest
from tests.oracle.llama_cpp.kept import Agreement, KeptRows, agree, keep

FIXTURES = Path(__file__).parent / "fixtures"
WINDOW_ROWS = 8
RENEW = "run make oracle, which renews the records with llama.cpp"


def their_logits(file: Path, spec: FileSpec) -> NDArray[np.float32]:
    """llama.cpp's logits of every row of every passage, keys and values in float32."""
    model = LlamaCppModel(file, threads=2, context=512, exact=True)
    rows = []
    for passage in spec.passages:
        model.clear()
        rows.append(model.read(passage, all_rows=True))
    model.close()
    return np.concatenate(rows)


def our_logits(file: Path, spec: FileSpec) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Ours twice: by `read`, which decodes the weights to float32 and rounds no activation, and by the C++ windows.

    Windows compute in the file's packed codes with activations of 8 bits, as decoding does; None without the library.
    """
    source = open_gguf_model(file)
    family = family_of(source.config)
    model = family.load(family.parse_config(source.config), source, torch.float32)
    segments = [Segment(model.new_state(), torch.tensor(passage)) for passage in spec.passages]
    read = model.read(segments, LogitRows.ALL).logits.numpy()
    if not library.is_available() or not attach_fast_windows(model, source, Pool(1)):
        return read, None
    return read, np.concatenate([_by_windows(model, passage) for passage in spec.passages])


def _by_windows(model: LanguageModel, passage: tuple[int, ...]) -> NDArray[np.float32]:
    state, rows = model.new_state(), []
    for start in range(0, len(passage), WINDOW_ROWS):
        window = model.window([Segment(state, torch.tensor(passage[start : start + WINDOW_ROWS]))])
        rows.append(window.output.logits.numpy().copy())
        model.commit(window, [len(rows[-1])])
    return np.concatenate(rows)


def record_path(spec: FileSpec) -> Path:
    """Where a file's record lies."""
    return FIXTURES / f"{spec.name}.npz"


def write_record(spec: FileSpec, logits: NDArray[np.float32]) -> KeptRows:
    """Keep llama.cpp's rows; those of the shipped model with a digest of the weights they belong to."""
    kept = keep(logits, spec.kept)
    digest = "" if spec.family else weights_digest()
    np.savez_compressed(record_path(spec), token_ids=kept.token_ids, codes=kept.codes, weights=np.array(digest))
    return kept


def read_record(spec: FileSpec) -> KeptRows:
    """What llama.cpp said. Fails if the shipped model is another one by now."""
    with np.load(record_path(spec)) as record:
        digest = str(record["weights"])
        assert spec.family or digest == weights_digest(), f"the shipped weights have changed: {RENEW}"
        return KeptRows(record["token_ids"], record["codes"])


def measure(file: Path, spec: FileSpec, reference: KeptRows) -> tuple[Agreement, Agreement | None]:
    """Our logits of a file against llama.cpp's: by `read`, and by windows if the native library is there."""
    read, windows = our_logits(file, spec)
    return agree(reference, read), None if windows is None else agree(reference, windows)
