"""The tokenizer of a model wherever it is: beside the weights of a directory, or inside a GGUF file.

Knows which kind a model is; each kind is read by its own module.
"""

from pathlib import Path

from strata.engine.messages import TokenizerFiles
from strata.text.gguf_tokenizer import tokenizer_files_from_gguf
from strata.text.tokenizer import Tokenizer, read_tokenizer_files, tokenizer_from_files
from strata.weights.gguf_source import GgufSource
from strata.weights.opening import ModelSource


def tokenizer_of(source: ModelSource) -> Tokenizer:
    """The tokenizer of an opened model; errors as in the two modules."""
    return tokenizer_from_files(tokenizer_files_of(source))


def tokenizer_files_of(source: ModelSource) -> TokenizerFiles:
    """What it is made of, so that another process can make it too; errors as above."""
    if isinstance(source, GgufSource):
        return tokenizer_files_from_gguf(source.model.metadata)
    return read_tokenizer_files(Path(source.directory))
