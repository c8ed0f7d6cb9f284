"""Small model directories for tests, good and broken. Writes bytes by hand so that a file can be wrong on purpose."""

import json
from pathlib import Path
from typing import Any

import torch

from strata.weights.header import CODE_OF_DTYPE


def write_file(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A correct safetensors file."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": CODE_OF_DTYPE[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    write_raw(path, header, data)


def write_raw(path: Path, header: Any, data: bytes) -> None:
    """A file with any header (an object, or bytes as they are) before any data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_model(
    directory: Path, shards: dict[str, dict[str, torch.Tensor]], config: dict[str, Any] | None = None
) -> Path:
    """A directory with config.json, shards and, unless the only shard is model.safetensors, an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or {}))
    for name, tensors in shards.items():
        write_file(directory / name, tensors)
    if list(shards) != ["model.safetensors"]:
        write_index(directory, {tensor: shard for shard, tensors in shards.items() for tensor in tensors})
    return directory


def write_index(directory: Path, shard_of: dict[str, str]) -> None:
    """model.safetensors.index.json."""
    text = json.dumps({"metadata": {}, "weight_map": shard_of})
    (directory / "model.safetensors.index.json").write_text(text)


def single(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None = None) -> Path:
    """A directory with one model.safetensors."""
    return write_model(directory, {"model.safetensors": tensors}, config)


def fp8_config(*block: int) -> dict[str, Any]:
    """config.json of a block-FP8 release."""
    return {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}}
