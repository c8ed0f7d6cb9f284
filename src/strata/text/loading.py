"""The tokenizer of a model wherever it is: beside the weights of a directory, or inside a GGUF file.

Knows which kind a model is; each kind is read by its own module.
"""

from pathlib import Path

from strata.text.gguf_tokenizer import tokenizer_from_gguf
from strata.text.tokenizer import Tokenizer, load_tokenizer
from strata.weights.gguf_source import GgufSource
from strata.weights.opening import ModelSource


def tokenizer_of(source: ModelSource) -> Tokenizer:
    """The tokenizer of an opened model; errors as in the two modules."""
    if isinstance(source, GgufSource):
        return tokenizer_from_gguf(source.model.metadata)
    return load_tokenizer(Path(source.directory))
