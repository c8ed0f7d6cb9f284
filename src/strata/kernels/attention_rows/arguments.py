"""What the attention of a window reads and writes: sizes, vectors, cells, and what its launches leave for each other.

Knows shapes; knows no arithmetic. R is a window's rows; state tensors are one layer's slice of all slots' state.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from strata.kernels.attention_rows.parts import most_parts
from strata.kernels.cell_pages.arguments import CellPages
from strata.quant.cell_codes import HEAD_DIMS, CellKind, CellRows

INDEX_HEAD_DIMS = (16, *HEAD_DIMS)
MOST_TOP_BLOCKS, MOST_BLOCKS = 1 << 11, 1 << 20  # a row's counts of both share 32 bits
MOST_ELEMENTS = 1 << 31  # of one slot: the kernels count inside a slot in 32 bits, slots in 64


@dataclass(frozen=True)
class IndexerRowsShape:
    """Sizes of an indexer."""

    heads: int
    head_dim: int
    ratio: int  # cells a block
    top_blocks: int  # blocks that a row attends to
    eps: float = 1e-6

    def __post_init__(self) -> None:
        _check_head_dim("the indexer's head_dim", self.head_dim, INDEX_HEAD_DIMS)
        if not 0 < self.top_blocks < MOST_TOP_BLOCKS:
            raise ValueError(f"top_blocks must be from 1 to {MOST_TOP_BLOCKS - 1}, not {self.top_blocks}")

    @property
    def budget(self) -> int:
        """Cells of the chosen blocks."""
        return self.top_blocks * self.ratio

    @property
    def dense_positions(self) -> int:
        """Rows before this position see every cell."""
        return self.budget + self.ratio - 1

    @property
    def width(self) -> int:
        """Columns of its projection: query heads, then one key."""
        return (self.heads + 1) * self.head_dim


@dataclass(frozen=True)
class AttentionRowsShape:
    """Sizes of one attention layer."""

    query_heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    has_output_gate: bool = False
    indexer: IndexerRowsShape | None = None

    def __post_init__(self) -> None:
        _check_head_dim("head_dim", self.head_dim, HEAD_DIMS)
        if self.query_heads % self.kv_heads:
            raise ValueError(f"{self.query_heads} query heads cannot share {self.kv_heads} key heads equally")

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.query_heads // self.kv_heads

    @property
    def query_width(self) -> int:
        """Columns of the queries, and of what attention gives."""
        return self.query_heads * self.head_dim

    @property
    def projected_width(self) -> int:
        """Columns of the projection: each query head's query (and gate), then keys, then values."""
        return self.query_width * (2 if self.has_output_gate else 1) + 2 * self.kv_heads * self.head_dim

    def most_seen(self, cells: int) -> int:
        """The most cells that a row attends to where a slot has `cells`."""
        return cells if self.indexer is None else min(cells, self.indexer.dense_positions)


@dataclass(frozen=True)
class AttentionVectors:
    """float32; what normed heads are multiplied by, None where a model has no such norm."""

    query_scale: torch.Tensor | None = None  # [head_dim]
    key_scale: torch.Tensor | None = None  # [head_dim]
    index_query_scale: torch.Tensor | None = None  # [indexer head_dim], both given where there is an indexer
    index_key_scale: torch.Tensor | None = None


@dataclass(frozen=True)
class AttentionLayer:
    """One layer's sizes and vectors."""

    shape: AttentionRowsShape
    vectors: AttentionVectors


@dataclass(frozen=True)
class RotationTables:
    """float32 [positions, half]: the turn of the first 2 * half values of every head."""

    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def half(self) -> int:
        """Pairs of values that are turned."""
        return self.cos.shape[1]


def rotation_table(frequencies: torch.Tensor, positions: int, device: torch.device | str) -> RotationTables:
    """The turns at positions 0 .. positions - 1; `frequencies` float64 [half] on the host, where angles are formed."""
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies.double()
    return RotationTables(*(table.float().to(device) for table in (angles.cos(), angles.sin())))


@dataclass(frozen=True)
class AttentionCells:
    """One layer's cells of all slots. Those behind a slot's committed ones may hold anything finite."""

    kind: CellKind
    keys: CellRows  # heads [slots, cells, kv_heads], stored as kind.keys
    values: CellRows  # the same, stored as kind.values
    raw: torch.Tensor | None = None  # float32 [slots, cells, indexer head_dim]
    pooled: torch.Tensor | None = None  # float32 [slots, cells // ratio, indexer head_dim]: keys of complete blocks
    pages: CellPages | None = None  # where windows find keys and values that lie in main memory; None: as they lie here

    @property
    def slots(self) -> int:
        """How many there are."""
        return self.keys.codes.shape[0]

    @property
    def count(self) -> int:
        """Cells of a slot."""
        return self.keys.codes.shape[1]

    @property
    def are_multiplied_in_place(self) -> bool:
        """Whether a read multiplies keys and values where they lie: bfloat16 on the device."""
        return self.kind is CellKind.BF16 and self.pages is None

    def rotates(self, query: torch.Tensor) -> bool:
        """Whether queries are rotated as keys are: those of windows. A read's keys are rotated back."""
        return self.kind.keys.is_rotated and query.dtype == torch.float32


@dataclass(frozen=True)
class ProjectedRows:
    """float32 products of a window's rows; columns lie side by side, rows may lie apart."""

    qkv: torch.Tensor  # [R, projected_width]
    index: torch.Tensor | None = None  # [R, indexer width]


@dataclass(frozen=True)
class BlockChoice:
    """The blocks that rows attend to."""

    scores: torch.Tensor  # float32 [R, blocks of a slot]
    chosen: torch.Tensor  # int32 [R, top_blocks], rising; of rows that choose
    counts: torch.Tensor  # int32 [R]: top_blocks, or 0: the row sees every cell up to its own
    arrivals: torch.Tensor  # int32 [R]: programs that have scored; 0 at first and after every launch


class Room(Protocol):
    """Gives a contiguous tensor of this shape, made as zeros; the name tells users of one memory apart."""

    def __call__(self, name: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor: ...


class PreparedQueries(Protocol):
    """What `attention_prepare` writes beside cells: the work of a window, or of a read."""

    @property
    def query(self) -> torch.Tensor:
        """[R, query_heads, head_dim], normed, turned, times head_dim^-0.5: of a read rounded to bfloat16, of a window
        float32, and rotated where keys are.
        """

    @property
    def index_query(self) -> torch.Tensor | None:
        """float32 [R, indexer heads, indexer head_dim]"""


@dataclass(frozen=True)
class AttentionWork:
    """What the launches of one layer leave for each other; layers after one another share it."""

    query: torch.Tensor  # float32 [R, query_heads, head_dim], see PreparedQueries
    peaks: torch.Tensor  # float32 [R, query_heads, parts]: of each part of a row's cells the largest score,
    totals: torch.Tensor  # float32 [R, query_heads, parts]: the sum of exp(score - peak),
    mixed: torch.Tensor  # float32 [R, query_heads, parts, head_dim]: and that of exp(score - peak) * value
    index_query: torch.Tensor | None = None  # float32 [R, indexer heads, indexer head_dim]
    choice: BlockChoice | None = None

    @property
    def parts(self) -> int:
        """Parts that a row may have."""
        return self.peaks.shape[2]

    @classmethod
    def make(cls, rows: int, shape: AttentionRowsShape, cells: int, room: Room) -> "AttentionWork":
        """For a bucket of `rows` rows over slots of `cells` cells, of the tensors that `room` gives."""
        heads, parts = shape.query_heads, most_parts(shape.most_seen(cells))
        index_query = choice = None
        if shape.indexer is not None:
            index_query = room("attention index query", rows, shape.indexer.heads, shape.indexer.head_dim)
            choice = BlockChoice(
                room("attention scores", rows, cells // shape.indexer.ratio),
                room("attention chosen", rows, shape.indexer.top_blocks, dtype=torch.int32),
                room("attention counts", rows, dtype=torch.int32),
                room("attention arrivals", rows, dtype=torch.int32),
            )
        return cls(
            room("attention query", rows, heads, shape.head_dim),
            room("attention peaks", rows, heads, parts),
            room("attention totals", rows, heads, parts),
            room("attention mixed", rows, heads, parts, shape.head_dim),
            index_query,
            choice,
        )

    @classmethod
    def empty(cls, rows: int, shape: AttentionRowsShape, cells: int, device: torch.device | str) -> "AttentionWork":
        """The same with tensors of its own; on the device "meta" it tells its size."""

        def room(name: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        return cls.make(rows, shape, cells, room)

    def bytes_used(self) -> int:
        """Bytes of all its tensors."""
        tensors = [self.query, self.peaks, self.totals, self.mixed]
        if self.index_query is not None and self.choice is not None:
            tensors += [self.index_query, *vars(self.choice).values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _check_head_dim(name: str, head_dim: int, possible: tuple[int, ...]) -> None:
    if head_dim not in possible:
        raise ValueError(f"{name} must be one of {', '.join(map(str, possible))}, not {head_dim}")
