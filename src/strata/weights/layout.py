"""Canonical tensors put together from stored ones: experts packed, n-gram shards joined, scales beside weights.

Knows names, shapes and storage types; reads no value and opens no file.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strata.errors import WeightFileError
from strata.weights.fp8 import scale_shape
from strata.weights.header import FP8, StoredTensor
from strata.weights.names import Part, PublishedName, is_vision_name, read_published_name, weight_of_scale

_SCALE_CODES = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Piece:
    """A stored tensor and the place of its values in the canonical tensor: an index of leading axes."""

    stored: StoredTensor
    scale: StoredTensor | None
    where: tuple[int | slice, ...]

    @property
    def stored_bytes(self) -> int:
        return self.stored.stored_bytes + (self.scale.stored_bytes if self.scale else 0)


@dataclass(frozen=True)
class CanonicalTensor:
    """One tensor as the engine sees it and the pieces that hold its values, in the order of its memory."""

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(piece.stored_bytes for piece in self.pieces)

    @property
    def code(self) -> str:
        """The storage type of the values, as the format writes it: all pieces share it."""
        return self.pieces[0].stored.code


@dataclass(frozen=True)
class Layout:
    """Everything that a model directory holds for a text engine."""

    tensors: dict[str, CanonicalTensor]
    vision_tensors: int  # how many were left out
    vision_bytes: int


def build_layout(stored: Mapping[str, StoredTensor], block: tuple[int, int] | None) -> Layout:
    """The canonical tensors of a set of stored ones. `block` is the FP8 block, None if the model declares none.

    Raises WeightFileError for experts or shards that are missing, pieces that do not fit together, tensors that
    mean the same, storage types that are not read and scales that do not fit their weights.
    """
    vision = [tensor for name, tensor in stored.items() if is_vision_name(name)]
    scales: dict[str, StoredTensor] = {}
    weights: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if is_vision_name(name):
            continue
        _ = tensor.dtype  # refuses a storage type that is not read
        scaled = weight_of_scale(name)
        if scaled is None:
            weights[name] = tensor
        else:
            scales[scaled] = tensor
    groups: dict[str, list[tuple[PublishedName, StoredTensor]]] = defaultdict(list)
    for name, tensor in weights.items():
        _check_scale(tensor, scales.get(name), block)
        place = read_published_name(name)
        groups[place.canonical].append((place, tensor))
    for scaled, scale in scales.items():
        if scaled not in weights:
            raise WeightFileError(f"{scale.file}: {scale.name} are the scales of {scaled}, which no file holds")
    tensors = {name: _join(name, parts, scales) for name, parts in groups.items()}
    return Layout(tensors, len(vision), sum(tensor.stored_bytes for tensor in vision))


def _check_scale(weight: StoredTensor, scale: StoredTensor | None, block: tuple[int, int] | None) -> None:
    """Float8 weights have scales of the declared block, and nothing else has scales."""
    where = f"{weight.file}: tensor {weight.name}"
    if weight.code != FP8:
        if scale is not None:
            raise WeightFileError(f"{where} is stored as {weight.code} but has block scales; only {FP8} has them")
        return
    if block is None:
        raise WeightFileError(f"{where} is stored as {FP8}, but config.json has no quantization_config for it")
    if scale is None:
        raise WeightFileError(f"{where} is stored as {FP8}, but its scales {weight.name}_scale_inv are missing")
    if len(weight.shape) < 2:
        raise WeightFileError(f"{where} is stored as {FP8} with shape {list(weight.shape)}; block scales need a matrix")
    expected = scale_shape(weight.shape, block)
    if scale.shape != expected:
        raise WeightFileError(
            f"{where} of shape {list(weight.shape)} in blocks of {block[0]} x {block[1]} needs scales of shape "
            f"{list(expected)}, not {list(scale.shape)}"
        )
    if scale.code not in _SCALE_CODES:
        raise WeightFileError(f"{where} has scales stored as {scale.code}; supported: {', '.join(_SCALE_CODES)}")


def _join(
    name: str, parts: list[tuple[PublishedName, StoredTensor]], scales: Mapping[str, StoredTensor]
) -> CanonicalTensor:
    """One canonical tensor from everything that was published of it."""
    kinds = {place.part for place, _ in parts}
    if Part.WHOLE in kinds:
        if len(parts) > 1:
            raise _twice(name, [tensor for _, tensor in parts])
        stored = parts[0][1]
        return CanonicalTensor(name, stored.shape, (Piece(stored, scales.get(stored.name), ()),))
    by_part = {kind: _in_order(name, kind, parts) for kind in kinds}
    if kinds == {Part.ROWS}:
        return _join_shards(name, by_part[Part.ROWS], scales)
    if kinds == {Part.DOWN}:
        return _join_experts(name, {Part.DOWN: by_part[Part.DOWN]}, scales)
    missing = {Part.GATE, Part.UP} - kinds
    if missing:
        raise WeightFileError(f"{name} is incomplete: no expert has a tensor {missing.pop().value}_proj.weight")
    return _join_experts(name, {Part.GATE: by_part[Part.GATE], Part.UP: by_part[Part.UP]}, scales)


def _in_order(name: str, kind: Part, parts: list[tuple[PublishedName, StoredTensor]]) -> list[StoredTensor]:
    """The tensors of one kind by their index, which must run from 0 without gaps; all of one type."""
    by_index: dict[int, StoredTensor] = {}
    for place, tensor in parts:
        if place.part is kind:
            if place.index in by_index:
                raise _twice(name, [by_index[place.index], tensor])
            by_index[place.index] = tensor
    what = "shard" if kind is Part.ROWS else f"{kind.value}_proj.weight of expert"
    count = len(by_index)
    if max(by_index) != count - 1:
        absent = next(index for index in range(count) if index not in by_index)
        raise WeightFileError(f"{name} is incomplete: {what} {absent} is missing (there are {count:,} of them)")
    first = by_index[0]
    for index in range(1, count):
        other = by_index[index]
        if other.code != first.code or other.shape[1:] != first.shape[1:] or len(other.shape) != 2:
            raise WeightFileError(
                f"{other.file}: {what} {index} of {name} is {list(other.shape)} {other.code}, that of 0 is "
                f"{list(first.shape)} {first.code}"
            )
    return [by_index[index] for index in range(count)]


def _join_shards(name: str, shards: list[StoredTensor], scales: Mapping[str, StoredTensor]) -> CanonicalTensor:
    pieces, row = [], 0
    for shard in shards:
        pieces.append(Piece(shard, scales.get(shard.name), (slice(row, row + shard.shape[0]),)))
        row += shard.shape[0]
    return CanonicalTensor(name, (row, *shards[0].shape[1:]), tuple(pieces))


def _join_experts(
    name: str, matrices: Mapping[Part, list[StoredTensor]], scales: Mapping[str, StoredTensor]
) -> CanonicalTensor:
    """[experts, rows, columns]: the matrices of one expert lie one under the other."""
    firsts = [tensors[0] for tensors in matrices.values()]
    counts = {len(tensors) for tensors in matrices.values()}
    if len(counts) > 1:
        raise WeightFileError(
            f"{name} is incomplete: {min(counts)} experts have one half of it, {max(counts)} the other"
        )
    if any(len(first.shape) != 2 for first in firsts):
        raise WeightFileError(f"{firsts[0].file}: {firsts[0].name} has shape {list(firsts[0].shape)}, not a matrix")
    pieces = []
    for expert in range(counts.pop()):
        row = 0
        for tensors in matrices.values():
            stored = tensors[expert]
            if stored.shape != firsts[0].shape or stored.code != firsts[0].code:
                raise WeightFileError(
                    f"{stored.file}: {stored.name} is {list(stored.shape)} {stored.code}, {firsts[0].name} is "
                    f"{list(firsts[0].shape)} {firsts[0].code}; the experts of a layer must be alike"
                )
            pieces.append(Piece(stored, scales.get(stored.name), (expert, slice(row, row + stored.shape[0]))))
            row += stored.shape[0]
    return CanonicalTensor(name, (len(pieces) // len(firsts), row, firsts[0].shape[1]), tuple(pieces))


def _twice(name: str, tensors: Iterable[StoredTensor]) -> WeightFileError:
    places = ", ".join(f"{tensor.name} in {tensor.file}" for tensor in list(tensors)[:2])
    return WeightFileError(f"{name} is published more than once: {places}")
