"""The trained model as files: bf16 pieces to resume from, block-FP8 weight files as the hub publishes them.

Knows names and storage types; knows no training.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.optimizer import is_matrix
from training.recipe import PocketShape, hub_config

BLOCK = 64
FP8_MAX = 448.0
PIECE_BYTES = 15 * 2**20


def is_quantized(name: str, tensor: Tensor) -> bool:
    """Matrices of layers are stored in block-FP8; tables, norms, routers, indexers and small gates in bf16."""
    return is_matrix(name, tensor) and ".indexer." not in name


def block_scales(weight: Tensor) -> Tensor:
    """weight [..., n, k], both multiples of 64 -> float32 scale of every 64 x 64 block [..., n / 64, k / 64]."""
    *lead, rows, columns = weight.shape
    blocks = weight.float().reshape(*lead, rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    return blocks.abs().amax((-3, -1)).clamp_min(1e-12) / FP8_MAX


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """-> float8_e4m3fn codes of weight's shape, and scales; weight is codes * scale."""
    scales = block_scales(weight)
    wide = scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return (weight.float() / wide).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales


def rounded(weight: Tensor) -> Tensor:
    """The values that the stored block-FP8 weight will have."""
    codes, scales = quantized(weight)
    wide = scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return codes.float() * wide


def pieces(tensors: Mapping[str, Tensor], limit: int) -> Iterable[dict[str, Tensor]]:
    """Groups of tensors of at most `limit` bytes each, in the order given."""
    group: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if group and size + tensor.nbytes > limit:
            yield group
            group, size = {}, 0
        group[name] = tensor.contiguous().cpu()
        size += tensor.nbytes
    yield group


def save_resume(folder: Path, parameters: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    """bf16 weights in pieces under 16 MiB and what the trainer needs to go on; Adam's state is not kept."""
    low = {name: tensor.detach().to(torch.bfloat16) for name, tensor in parameters.items()}
    for index, piece in enumerate(pieces(low, PIECE_BYTES)):
        save_file(piece, folder / f"resume_{index}.safetensors")
    (folder / "resume.json").write_text(json.dumps(facts))


def load_resume(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("resume_*.safetensors")):
        weights.update(load_file(path))
    return weights, json.loads((folder / "resume.json").read_text())


def published_name(name: str) -> str:
    name = name.replace("ngram_embedding.weight", "ngram_embedding.shard_0.weight")
    return "model.language_model." + name.removeprefix("model.") if name.startswith("model.") else name


def save_model(folder: Path, shape: PocketShape, tensors: Mapping[str, Tensor]) -> None:
    """Weight files, their index and config.json, in the hub's layout."""
    stored: dict[str, Tensor] = {}
    plain: list[str] = []
    for name, tensor in tensors.items():
        published = published_name(name)
        if is_quantized(name, tensor):
            stored[published], scales = quantized(tensor.detach())
            stored[published + "_scale_inv"] = scales
        else:
            stored[published] = tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor
            if name.endswith(".weight") and tensor.ndim == 2:
                plain.append(published.removesuffix(".weight"))
    groups = list(pieces(stored, PIECE_BYTES))
    names: dict[str, str] = {}
    for index, group in enumerate(groups):
        file = f"model-{index + 1:05d}-of-{len(groups):05d}.safetensors"
        save_file(group, folder / file, metadata={"format": "pt"})
        names.update(dict.fromkeys(group, file))
    total = sum(tensor.nbytes for tensor in stored.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file, indent=1))
    config = hub_config(shape)
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": sorted(plain),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
