"""A model directory as the hub publishes it: its config.json, its index and its safetensors files.

Knows file names and what may be wrong with them; knows no canonical name and reads no tensor.
"""

import os
import stat
from pathlib import Path
from typing import Any

from strata.errors import ConfigError, ModelError, WeightFileError
from strata.weights.header import StoredTensor, read_header
from strata.weights.json_files import load_json_object, reason_of

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


def check_directory(directory: Path) -> None:
    """Refuse a path that is no directory or may not be entered, with a sentence that says what to give instead."""
    try:
        mode = os.stat(directory).st_mode
    except FileNotFoundError:
        hint = ""
        if len(directory.parts) == 2 and not directory.is_absolute():
            hint = f"; if this is a model's name on the hub, download it first: hf download {directory} --local-dir ..."
        raise ModelError(f"there is no model directory or GGUF file {directory}{hint}") from None
    except OSError as failure:
        raise ModelError(f"the model directory {directory} cannot be read: {reason_of(failure)}") from None
    if not stat.S_ISDIR(mode):
        raise ModelError(f"{directory} is a file; give a GGUF file, or the directory that holds config.json")
    if not os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
        raise ModelError(f"the model directory {directory} cannot be read: permission denied")


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a model directory, not yet understood.

    Raises ModelError if the directory cannot be read, ConfigError if the file is missing or no JSON object in UTF-8.
    """
    check_directory(directory)
    if not _exists(directory / CONFIG_NAME):
        raise ConfigError(
            f"{directory} has no config.json; a model directory holds config.json, tokenizer.json and "
            f"*.safetensors files{_what_is_there(directory)}"
        )
    return load_json_object(directory / CONFIG_NAME, ConfigError)


def has_weight_files(directory: Path) -> bool:
    """True if the directory has an index or a single safetensors file; nothing is opened."""
    return _exists(directory / SINGLE_NAME) or _exists(directory / INDEX_NAME)


def read_stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the directory by its published name; reads headers only.

    Raises WeightFileError for a missing, truncated or broken file, for an index that does not fit its shards, and
    for a tensor that two files hold.
    """
    check_directory(directory)
    if _exists(directory / SINGLE_NAME):  # beside an index it wins, as it does for transformers
        return read_header(directory / SINGLE_NAME)
    if not _exists(directory / INDEX_NAME):
        raise WeightFileError(f"{directory} has neither {SINGLE_NAME} nor {INDEX_NAME}{_what_is_there(directory)}")
    shard_of = _read_index(directory / INDEX_NAME)
    tensors: dict[str, StoredTensor] = {}
    for shard in dict.fromkeys(shard_of.values()):
        file = directory / shard
        if not _exists(file):
            named = sum(1 for other in shard_of.values() if other == shard)
            raise WeightFileError(
                f"the shard {shard} is missing from {directory}: {INDEX_NAME} names it for {named:,} of "
                f"{len(shard_of):,} tensors; download the model again"
            )
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise WeightFileError(f"tensor {name} is in two files: {tensors[name].file} and {file}")
            tensors[name] = tensor
    _check_index(directory, shard_of, tensors)
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    """The index's map from published name to the name of the file, every name of a file checked."""
    shard_of = load_json_object(index, WeightFileError).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise WeightFileError(f"{index} has no weight_map that names tensors")
    for name, shard in shard_of.items():
        # The index comes from a stranger: a name with a folder in it could point anywhere on this PC.
        if not isinstance(shard, str) or not shard or shard in (".", "..") or any(c in shard for c in "/\\\0"):
            raise WeightFileError(
                f"{index} names the file {str(shard)[:100]!r} for tensor {name}; only a plain file name beside the "
                "index is read"
            )
    return shard_of


def _check_index(directory: Path, shard_of: dict[str, str], tensors: dict[str, StoredTensor]) -> None:
    for name, shard in shard_of.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.file.name != shard:
            elsewhere = f"; it is in {tensor.file.name}" if tensor else ""
            raise WeightFileError(
                f"{INDEX_NAME} names {shard} for tensor {name}, which {directory / shard} does not hold{elsewhere}"
            )


def _exists(path: Path) -> bool:
    """True if there is something of that name; a system that will not say is an error, not an absence."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as failure:
        reason = reason_of(failure) if isinstance(failure, OSError) else str(failure)
        raise ModelError(f"{path} cannot be read: {reason}") from None
    return True


def _what_is_there(directory: Path) -> str:
    """A half sentence on weight files of other kinds, which explains most directories that are not usable."""
    try:
        names = os.listdir(directory)
    except OSError:
        return ""
    kinds = {
        ".safetensors": f"there are safetensors files, but no {INDEX_NAME} that says which tensor is where",
        ".gguf": "there is a GGUF file: give its own path",
        ".bin": "there are pickled weights (*.bin), which are never read",
        ".incomplete": "a download there is not finished",
    }
    if has_weight_files(directory):
        return ""
    for suffix, sentence in kinds.items():
        if any(name.endswith(suffix) for name in names):
            return f"; {sentence}"
    return ""
