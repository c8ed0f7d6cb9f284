"""Opens a model wherever it is: a published directory of safetensors files, or a GGUF file.

Knows which kind a path is; each kind is opened by its own module.
"""

from pathlib import Path

from strata.weights import safetensors
from strata.weights.directory import has_weight_files
from strata.weights.gguf import is_gguf
from strata.weights.gguf_source import GgufSource, open_gguf_model
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import SafetensorsSource

ModelSource = SafetensorsSource | GgufSource


def open_model(path: Path, quantize: str = "none") -> ModelSource:
    """Open a model; headers are read and checked, no value. Raises ModelError with one sentence.

    quantize: `code4` or `code8` packs the matrices of a published directory while they are read; a GGUF file is taken
    as it is.
    """
    if is_gguf(path):
        return open_gguf_model(path)
    source = safetensors.open_model(path)
    return source if quantize == "none" else QuantizingSource(source, quantize)


def has_weights(path: Path) -> bool:
    """True if the path is a GGUF file or a directory with weight files; nothing is opened."""
    return is_gguf(path) or has_weight_files(path)
