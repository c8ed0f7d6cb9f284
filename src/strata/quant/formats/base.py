"""What every published format offers: its block, its published values, and the way into a storage code.

Knows how raw bytes become blocks and what is refused; knows no single format and no file.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from strata.errors import WeightFileError
from strata.native.packing import Packing, pack, packs
from strata.quant.layout import Array, Code, MatrixLayout, MinKind, ScaleKind
from strata.quant.packed import PackedMatrix, view_matrix
from strata.quant.packed import pack as pack_rows
from strata.quant.packer import Packer
from strata.quant.rows import RowMajor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
RawBytes = bytes | bytearray | memoryview | Bytes | torch.Tensor


@dataclass(frozen=True)
class Storage:
    """How a format's weights are stored: a layout without rows and columns, and a constant factor."""

    code: Code
    sub_block: int = 32
    scale_kind: ScaleKind = ScaleKind.NONE
    min_kind: MinKind = MinKind.NONE
    table: tuple[int, ...] = ()
    post_scale: float = 1.0  # a power of two that the format's formula has beside its scales


@dataclass(frozen=True)
class Format:
    """One published format. `blocks` below are [rows, blocks of a row, block_bytes] uint8."""

    name: str
    gguf_type: int  # ggml's type id
    block_weights: int
    block_bytes: int
    storage: Storage
    dequantize_blocks: Callable[[Bytes], Floats]  # [n, block_bytes] -> [n, block_weights], the published formula
    split_blocks: Callable[[Bytes], RowMajor]  # blocks -> the arrays of its storage
    quantize_blocks: Callable[[Floats], Bytes] | None = None  # finite [n, block_weights] -> [n, block_bytes]
    # Where the scales are not plain f16 (checked here): raises ValueError with what is wrong with a block.
    check_blocks: Callable[[Bytes], None] | None = None
    half_scales: tuple[int, ...] = ()  # byte offsets of the f16 scales in a block
    storage_of: Callable[[Bytes], Storage] | None = None  # for blocks that do not fit `storage`; None: all do

    @property
    def bits_per_weight(self) -> float:
        """Of the published format."""
        return self.block_bytes * 8 / self.block_weights

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row. Raises WeightFileError if the columns are no whole number of blocks."""
        if columns < 1 or columns % self.block_weights:
            raise WeightFileError(
                f"{self.name} holds blocks of {self.block_weights} weights; {columns} are no multiple"
            )
        return columns // self.block_weights * self.block_bytes

    def layout(self, rows: int, columns: int) -> MatrixLayout:
        """What `to_packed` makes of a matrix of this size."""
        self.row_bytes(columns)
        return _layout(self.storage, rows, columns)

    def dequantize(self, raw: RawBytes) -> Floats:
        """The published values of whole blocks, float32 [weights]."""
        blocks = as_bytes(raw)
        if blocks.size % self.block_bytes:
            raise WeightFileError(f"{self.name}: {blocks.size} bytes are no whole number of {self.block_bytes}")
        return self.dequantize_blocks(blocks.reshape(-1, self.block_bytes)).reshape(-1)

    def to_packed(
        self, raw: RawBytes, rows: int, columns: int, post_scale: float = 1.0, packer: Packer | None = None
    ) -> PackedMatrix:
        """A matrix as it lies in a file, rows first, in its storage code: the same values.

        post_scale: a factor of the whole matrix that is published beside it (NVFP4). packer: the C++ library packs what
        it knows, to the same bytes; None: NumPy does. Raises WeightFileError for a wrong number of bytes and for scales
        that are not finite.
        """
        if packer is not None:
            packed = self._pack_by(packer, as_bytes(raw), rows, columns, post_scale)
            if packed is not None:
                return packed
        blocks = self._blocks_of(raw, rows, columns)
        storage = self.storage if self.storage_of is None else self.storage_of(blocks)
        if not np.isfinite(np.float32(post_scale)):
            raise WeightFileError(f"the scale of a {self.name} tensor is not finite")
        return pack_rows(_layout(storage, rows, columns), self.split_blocks(blocks), storage.post_scale * post_scale)

    def quantize(self, values: Floats | torch.Tensor) -> Bytes:
        """Bytes of whole blocks from float values. Raises ValueError if this format is only read."""
        if self.quantize_blocks is None:
            raise ValueError(f"Strata reads {self.name} and does not write it")
        array = values.float().numpy() if isinstance(values, torch.Tensor) else np.asarray(values, np.float32)
        if array.size % self.block_weights or not np.isfinite(array).all():
            raise ValueError(f"{self.name} takes finite values, a multiple of {self.block_weights} of them")
        return self.quantize_blocks(array.reshape(-1, self.block_weights)).reshape(-1)

    def factor(self, post_scale: float) -> float:
        """The post scale of a matrix in `storage` that has this factor published beside it: a float32."""
        return float(np.float32(self.storage.post_scale * post_scale))

    def _pack_by(self, packer: Packer, raw: Bytes, rows: int, columns: int, post_scale: float) -> PackedMatrix | None:
        """None for what only NumPy packs, and for what is refused there."""
        is_sound = raw.size == rows * self.row_bytes(columns) and np.isfinite(np.float32(post_scale))
        if not packs(self.gguf_type) or not is_sound:
            return None
        layout = self.layout(rows, columns)
        buffer = packer.memory(layout.total_bytes)
        packed = view_matrix(layout, buffer, layout.places(), self.factor(post_scale))
        addresses = tuple(packed.array(array).data_ptr() or None for array in Array)
        packing = Packing(self.gguf_type, columns, raw.reshape(1, rows, -1), addresses)
        try:
            (refused,) = pack(packer.pool, [packing])
        except OSError as failure:
            raise WeightFileError(f"a {self.name} matrix cannot be read: {failure.strerror}") from failure
        return packed if refused is None else None

    def _blocks_of(self, raw: RawBytes, rows: int, columns: int) -> Bytes:
        found = as_bytes(raw)
        wanted = rows * self.row_bytes(columns)
        if found.size != wanted:
            raise WeightFileError(
                f"a {self.name} matrix of {rows} x {columns} takes {wanted:,} bytes; the file has {found.size:,}"
            )
        blocks = found.reshape(rows, -1, self.block_bytes)
        for offset in self.half_scales:
            if not half_is_finite(blocks[..., offset : offset + 2]):
                raise WeightFileError(f"a scale of a {self.name} matrix is not finite")
        if self.check_blocks is not None:
            try:
                self.check_blocks(blocks)
            except ValueError as reason:
                raise WeightFileError(f"a {self.name} matrix: {reason}") from reason
        return blocks


def _layout(storage: Storage, rows: int, columns: int) -> MatrixLayout:
    return MatrixLayout(
        rows, columns, storage.code, storage.sub_block, storage.scale_kind, storage.min_kind, storage.table
    )


def as_bytes(raw: RawBytes) -> Bytes:
    """Any buffer as a flat uint8 array without a copy."""
    if isinstance(raw, torch.Tensor):
        return raw.contiguous().view(torch.uint8).reshape(-1).numpy()
    if isinstance(raw, np.ndarray):
        return np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    return np.frombuffer(raw, np.uint8)


def half_bits(blocks: Bytes, offset: int) -> NDArray[np.uint16]:
    """The two bytes at `offset` of every block as the bits of an f16: [.., bytes] -> [..]."""
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.uint16)[..., 0]


def half(blocks: Bytes, offset: int) -> Floats:
    """The f16 at `offset` of every block, float32 [.., 1]: it multiplies what stands beside it."""
    return half_bits(blocks, offset).view(np.float16).astype(np.float32)[..., None]


def half_is_finite(two_bytes: Bytes) -> bool:
    """Whether f16 values, [.., 2] bytes, are all finite."""
    return not bool(((two_bytes[..., 1] & 0x7C) == 0x7C).any())


def nibbles(packed: Bytes) -> Bytes:
    """[.., n] bytes -> [.., 2n]: all low halves, then all high halves."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def words_of_nibbles(blocks: Bytes, offset: int) -> NDArray[np.uint32]:
    """Blocks of 32 weights whose 16 bytes at `offset` hold them as `nibbles` says: code4's own order, so bytes move
    as they are: [rows, blocks, bytes] -> words [rows, blocks, 4]."""
    return np.ascontiguousarray(blocks[..., offset : offset + 16]).view(np.uint32)
