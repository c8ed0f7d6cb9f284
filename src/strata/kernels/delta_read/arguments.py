"""What the delta net of a read is computed in, and the checks of its arguments. Knows sizes; knows no arithmetic."""

from dataclasses import dataclass

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.delta_rows.arguments import DeltaRowsShape, DeltaState, DeltaVectors, check_shape, check_vectors
from strata.quant.layout import BLOCK_COLUMNS

CHUNK = 64  # rows that the rule takes at once; chunks begin at absolute multiples of it
LEAST_DIM = 16  # of a head: what a matrix unit multiplies
MOST_ELEMENTS = 2**31  # of projected rows, and of a tensor of the work: kernels count them in 31 bits


@dataclass(frozen=True)
class DeltaReadWork:
    """What the launches of one pass over whole chunks leave for each other; passes and layers share it.

    A float32 value that matrix units multiply is kept as two bfloat16, `[0]` rounded and `[1]` what that left out.
    """

    queries: torch.Tensor  # bfloat16 [2, rows, key_width]: of length key_dim ** -0.5
    keys: torch.Tensor  # bfloat16 [2, rows, key_width]: of length 1
    values: torch.Tensor  # float32 [chunks, value_width, CHUNK]; then, in its place, what of them is `written`
    gates: torch.Tensor  # float32 [5, chunks, value_heads, CHUNK]: beta; the log decay since the chunk's start in
    # two parts, as high and low; its exp; the decay from behind the row to the chunk's end
    solved: torch.Tensor  # bfloat16 [2, chunks, value_heads, CHUNK, CHUNK]: what of each row's value is written
    scores: torch.Tensor  # bfloat16 [2, chunks, value_heads, CHUNK, CHUNK]: what a query recalls of rows of its chunk
    states: torch.Tensor  # bfloat16 [2, chunks, value_width, key_dim]: the state where each chunk starts, transposed

    @classmethod
    def empty(cls, rows: int, shape: DeltaRowsShape, device: torch.device | str) -> "DeltaReadWork":
        """Room for passes of `rows` rows, a multiple of CHUNK. Longer reads take several passes: the same bits."""
        _check_pass("rows", rows, shape)
        squares = (rows // CHUNK, shape.value_heads, CHUNK, CHUNK)

        def empty(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        return cls(
            empty(2, rows, shape.key_width),
            empty(2, rows, shape.key_width),
            empty(rows // CHUNK, shape.value_width, CHUNK, dtype=torch.float32),
            empty(5, *squares[:-1], dtype=torch.float32),
            empty(2, *squares),
            empty(2, *squares),
            empty(2, rows // CHUNK, shape.value_width, shape.key_dim),
        )

    @property
    def rows(self) -> int:
        """Rows of one pass."""
        return self.queries.shape[1]

    @property
    def written(self) -> torch.Tensor:
        """bfloat16 [chunks, value_width, 2, CHUNK], both parts of a value where the value was."""
        return self.values.view(torch.bfloat16).unflatten(-1, (2, CHUNK))

    @property
    def bytes_used(self) -> int:
        """Of all its tensors."""
        parts = (self.queries, self.keys, self.values, self.gates, self.solved, self.scores, self.states)
        return sum(part.numel() * part.element_size() for part in parts)


def check_read(
    projected: torch.Tensor,
    position: int,
    slot: int,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaReadWork,
    out: torch.Tensor,
    block_order: torch.Tensor | None,
) -> None:
    """Raises ValueError for what `delta_read` cannot take."""
    check_shape(shape)
    _check_dims(shape)
    _check_projected(projected, shape)
    slots, rows = state.delta.shape[0], projected.shape[0]
    if position < 0:
        raise ValueError(f"position must be at least 0, not {position}")
    if not 0 <= slot < slots:
        raise ValueError(f"slot must be one of 0 to {slots - 1}, not {slot}")
    check_tensor("state.delta", state.delta, (slots, shape.value_heads, shape.key_dim, shape.value_dim))
    check_tensor("state.conv_tail", state.conv_tail, (slots, shape.tail_rows, shape.conv_width))
    check_vectors(vectors, shape, ())
    _check_work(work, shape)
    check_tensor("out", out, (rows, shape.value_width), torch.bfloat16)
    if block_order is not None:
        if shape.value_dim % BLOCK_COLUMNS:
            raise ValueError(f"block_order moves whole heads of a multiple of {BLOCK_COLUMNS}, not {shape.value_dim}")
        check_tensor("block_order", block_order, (shape.value_width // BLOCK_COLUMNS,), torch.int32)


def _check_pass(name: str, rows: int, shape: DeltaRowsShape) -> None:
    of_a_row = max(shape.value_width * max(2, shape.key_dim // CHUNK), shape.key_width, shape.value_heads * CHUNK)
    most = (MOST_ELEMENTS - 1) // of_a_row // CHUNK * CHUNK
    if not CHUNK <= rows <= most or rows % CHUNK:
        raise ValueError(f"{name} must be a multiple of {CHUNK} up to {most}, not {rows}")


def _check_dims(shape: DeltaRowsShape) -> None:
    for name, size in (("key_dim", shape.key_dim), ("value_dim", shape.value_dim)):
        if size < LEAST_DIM:
            raise ValueError(f"{name} of a read must be at least {LEAST_DIM}, not {size}; windows take any head")


def _check_projected(projected: torch.Tensor, shape: DeltaRowsShape) -> None:
    width = shape.projected_width
    is_known = projected.dtype in (torch.float32, torch.bfloat16)
    if not is_known or projected.dim() != 2 or projected.shape[1] != width or projected.stride(1) != 1:
        raise ValueError(
            f"projected must be float32 or bfloat16 [rows, {width}] whose columns lie side by side, "
            f"not {projected.dtype} {list(projected.shape)} with strides {list(projected.stride())}"
        )
    rows = projected.shape[0]
    if rows < 1 or rows * projected.stride(0) >= MOST_ELEMENTS:
        raise ValueError(f"projected must have 1 to {(MOST_ELEMENTS - 1) // projected.stride(0)} rows, not {rows}")


def _check_work(work: DeltaReadWork, shape: DeltaRowsShape) -> None:
    rows = work.rows
    _check_pass("rows of work.queries", rows, shape)
    squares = (rows // CHUNK, shape.value_heads, CHUNK, CHUNK)
    check_tensor("work.queries", work.queries, (2, rows, shape.key_width), torch.bfloat16)
    check_tensor("work.keys", work.keys, (2, rows, shape.key_width), torch.bfloat16)
    check_tensor("work.values", work.values, (rows // CHUNK, shape.value_width, CHUNK))
    check_tensor("work.gates", work.gates, (5, *squares[:-1]))
    check_tensor("work.solved", work.solved, (2, *squares), torch.bfloat16)
    check_tensor("work.scores", work.scores, (2, *squares), torch.bfloat16)
    states = (2, rows // CHUNK, shape.value_width, shape.key_dim)
    check_tensor("work.states", work.states, states, torch.bfloat16)
