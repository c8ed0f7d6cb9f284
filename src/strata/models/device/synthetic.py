"""A model of random weights made where it computes, in seconds and without a file: see `Weights`.

Knows how many bits a weight takes and how large its values must be; knows no family. Matrices are random codes of the
device's generator with scales that give the usual variance; vectors have the values of `strata synth`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from strata.errors import SettingsError
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.models.blocks.linear import Weight
from strata.models.blocks.moe import Experts
from strata.models.device.held import DeviceExperts, DeviceMatrices, DeviceTable, join_neighbours
from strata.models.weights import TableGather, TakenRows
from strata.quant.formats.base import Format
from strata.quant.formats.floats import BF16, F32
from strata.quant.formats.q2_0 import Q2_0
from strata.quant.formats.q4_0 import Q4_0
from strata.quant.formats.q8_0 import Q8_0
from strata.quant.layout import TILE_ROWS, Array, BlobLayout, Code, MatrixLayout, Place
from strata.quant.packed import PackedMatrix, view_matrix
from strata.weights.synthetic import PublishedStyle, hash_values, key_of, rule_of

ROUTER = ".mlp.gate.weight"
TakeExperts = Callable[[str, torch.Tensor], None]  # a layer's prefix, and its blobs: uint8 [experts, bytes]
FORMATS: dict[float, Format] = {each.bits_per_weight: each for each in (Q2_0, Q4_0, Q8_0, BF16)}
# Root mean square of the integer that a random code means.
_CODE_SIZES = {Code.CODE2: math.sqrt(1.5), Code.CODE4: math.sqrt(21.5), Code.CODE8: 73.9}


@dataclass(frozen=True)
class SyntheticForm:
    """Bits of a weight, scales included: of routed experts and n-gram tables, and of every other matrix."""

    experts_bits: float = 4.5
    dense_bits: float = 8.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("experts-bits", self.experts_bits), ("dense-bits", self.dense_bits)):
            if bits not in FORMATS:
                works = ", ".join(f"{known:g} ({each.name})" for known, each in FORMATS.items())
                raise SettingsError(f"--{name} {bits:g} does not work; {works} do")


class SyntheticWeights:
    """See `Weights`: every tensor of `shapes`, made when it is asked for."""

    dtype = torch.float32

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        style: PublishedStyle,
        device: torch.device,
        form: SyntheticForm | None = None,
        router_scales: torch.Tensor | None = None,
        take_experts: TakeExperts | None = None,
    ) -> None:
        """router_scales [experts]: by how much rows of routers are longer, in another order in every layer.

        take_experts: is given the blobs of every layer that is asked for; nothing keeps them here then.
        """
        self.device = device
        self.form = form or SyntheticForm()
        self._shapes = shapes
        self._style = style
        self._router_scales = router_scales
        self._take_experts = take_experts
        self._held: dict[str, DeviceMatrices] = {}  # a tied head asks for the embedding again

    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def values(self, name: str) -> torch.Tensor:
        shape = self.shape(name)
        rule = rule_of(name, shape, self._style, "lm_head.weight" not in self._shapes)
        return rule.apply(hash_values(key_of(name, self.form.seed), 0, math.prod(shape))).view(shape)

    def matrix(self, *parts: str | TakenRows) -> Weight:
        if len(parts) == 1 and isinstance(parts[0], str):
            return self._hold(parts[0])
        return DeviceMatrices(join_neighbours([self._matrix(part) for part in parts]))

    def table(self, name: str) -> TableGather:
        return DeviceTable(self._hold(name).parts)

    def table_in_files(self, name: str) -> TableGather:
        return self.table(name)

    def experts(self, prefix: str) -> Experts:
        layout, blobs = self.blob_layout(prefix), self._expert_blobs(prefix)
        if self._take_experts is not None:
            self._take_experts(prefix, blobs)
            blobs = blobs.new_empty(0)
        return DeviceExperts(ExpertBlobs(layout, blobs.view(-1)))

    def _expert_blobs(self, prefix: str) -> torch.Tensor:
        """uint8 [experts, bytes of a blob] on the device."""
        layout = self.blob_layout(prefix)
        count = self.shape(f"{prefix}experts.down_proj")[0]
        memory = self._random_bytes(count, layout.total_bytes, f"{prefix}experts")
        for matrix, places in zip(layout.matrices, layout.places(), strict=True):
            self._scale(matrix, places, memory, f"{prefix}experts", 1 / math.sqrt(matrix.columns))
        posts = layout.post_scales
        ones = torch.ones(posts.size // 4, device=self.device).view(torch.uint8)
        memory[:, posts.offset : posts.offset + posts.size] = ones
        return memory

    def held_bytes(self, name: str) -> int:
        """What a matrix, or a layer's experts without what fills their blobs up, takes on the device."""
        shape = self.shape(name)
        if len(shape) == 3:
            return shape[0] * self._layout(name, *shape[1:]).total_bytes
        return self._layout(name, *shape).total_bytes

    def blob_layout(self, prefix: str) -> BlobLayout:
        """The layout of a layer's experts."""
        _, rows, hidden = self.shape(f"{prefix}experts.gate_up_proj")
        gate = self._layout(f"{prefix}experts.gate_up_proj", rows // 2, hidden)
        return BlobLayout(gate, gate, self._layout(f"{prefix}experts.down_proj", hidden, rows // 2))

    def _hold(self, name: str) -> DeviceMatrices:
        if name not in self._held:
            self._held[name] = DeviceMatrices((self._matrix(name),))
        return self._held[name]

    def _matrix(self, part: str | TakenRows) -> PackedMatrix:
        name = part if isinstance(part, str) else part.name
        rows, columns = self.shape(name)
        layout = self._layout(name, rows if isinstance(part, str) else part.rows.numel(), columns)
        memory = self._random_bytes(1, layout.total_bytes, name)
        is_looked_up = name.endswith((".ngram_embedding.weight", "embed_tokens.weight"))
        size = 1.0 if is_looked_up and "lm_head.weight" in self._shapes else 1 / math.sqrt(columns)
        self._scale(layout, layout.places(), memory, name, size)
        matrix = view_matrix(layout, memory[0], layout.places())
        if self._router_scales is not None and name.endswith(ROUTER):
            scale_rows(matrix, self._router_scales[self._any_order(name, len(self._router_scales))])
        return matrix

    def _layout(self, name: str, rows: int, columns: int) -> MatrixLayout:
        """Routers stay floats, as converters leave them; so does what the form's blocks do not divide."""
        is_routed = ".mlp.experts." in name or name.endswith(".ngram_embedding.weight")
        chosen = FORMATS[self.form.experts_bits if is_routed else self.form.dense_bits]
        if name.endswith(ROUTER) or columns % chosen.block_weights:
            chosen = F32
        return chosen.layout(rows, columns)

    def _random_bytes(self, count: int, size: int, name: str) -> torch.Tensor:
        """uint8 [count, size], size a multiple of 4."""
        memory = torch.empty(count, size, dtype=torch.uint8, device=self.device)
        memory.view(torch.int32).random_(-(2**31), 2**31, generator=self._generator(name))
        return memory

    def _scale(
        self, layout: MatrixLayout, places: dict[Array, Place], memory: torch.Tensor, name: str, size: float
    ) -> None:
        """Scales into memory [count, bytes] of random codes, so that weights have the root mean square `size`.

        Half of the scales of integer codes are below 0: the integers' mean is not 0 (-0.5 of those from -8 to 7), and
        weights with such a mean push all rows into one direction, the same for each: their routers choose alike then.
        """
        code = layout.code
        place = places[Array.CODES if code.is_float else Array.SCALES]
        part, generator = memory[:, place.offset : place.offset + place.size], self._generator(f"{name} scales")
        if code.is_float:
            dtype = torch.float32 if code is Code.F32 else torch.bfloat16
            shape = len(part), place.size // dtype.itemsize
            values = torch.randn(shape, generator=generator, device=self.device) * size
            part.copy_(values.to(dtype).view(torch.uint8))
        else:
            shape = len(part), place.size // 2
            spread = torch.rand(shape, generator=generator, device=self.device) + 0.5
            signs = 2 * torch.randint(0, 2, shape, dtype=torch.int8, generator=generator, device=self.device) - 1
            part.copy_((signs * spread * (size / _CODE_SIZES[code])).half().view(torch.uint8))

    def _any_order(self, name: str, count: int) -> torch.Tensor:
        """int64 [count] in main memory: an order of its own for every name."""
        generator = torch.Generator().manual_seed(key_of(f"{name} order", self.form.seed) >> 1)
        return torch.randperm(count, generator=generator)

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(key_of(name, self.form.seed) >> 1)


def scale_rows(matrix: PackedMatrix, scales: torch.Tensor) -> None:
    """Multiply every row of a float32 matrix by its own scale [rows], where it lies."""
    layout = matrix.layout
    by_tile = torch.zeros(layout.tiles * TILE_ROWS)
    by_tile[: layout.rows] = scales
    values = matrix.codes.view(torch.float32).view(layout.tiles, layout.columns, TILE_ROWS)
    values *= by_tile.view(layout.tiles, 1, TILE_ROWS).to(values.device)
