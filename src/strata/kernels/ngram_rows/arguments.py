"""What the n-gram embedding of a window's rows is computed from, and the checks. Knows sizes; knows no arithmetic.

Tensors are float32, contiguous and on the computing device, if nothing else is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.expert_plan.tables import HEADER_FIELDS, Mailbox, PlanState
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS
from strata.quant.packed import PackedMatrix


@dataclass(frozen=True)
class NgramHash:
    """How the last tokens become rows of the table: one head's rows lie behind another's."""

    multipliers: torch.Tensor  # int64 [ngram_size], each small enough that token * multiplier fits int64
    head_sizes: torch.Tensor  # int64 [heads]: heads of the order 2 first
    head_starts: torch.Tensor  # int64 [heads]: the first row of each head's part of the table
    end_of_text: int  # an n-gram never reaches back over this token

    @property
    def ngram_size(self) -> int:
        return self.multipliers.numel()

    @property
    def history_rows(self) -> int:
        """Tokens before a row that its n-grams reach."""
        return self.ngram_size - 1

    @property
    def heads(self) -> int:
        return self.head_sizes.numel()

    @property
    def heads_per_ngram(self) -> int:
        """Heads of each order 2 .. ngram_size."""
        return self.heads // self.history_rows

    @classmethod
    def of(
        cls, multipliers: Sequence[int], head_sizes: Sequence[int], end_of_text: int, device: torch.device | str
    ) -> "NgramHash":
        """The constants as tensors on a device."""
        starts = [sum(head_sizes[:head]) for head in range(len(head_sizes))]

        def constants(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(constants(multipliers), constants(head_sizes), constants(starts), end_of_text)


@dataclass(frozen=True)
class NgramRowsShape:
    """Sizes of every n-gram layer of a model."""

    streams: int
    hidden: int
    conv_kernel: int
    dilation: int  # rows between two taps
    eps: float = 1e-6

    @property
    def width(self) -> int:
        """Columns of all streams."""
        return self.streams * self.hidden

    @property
    def tail_rows(self) -> int:
        """Rows that a convolution reaches back."""
        return (self.conv_kernel - 1) * self.dilation


@dataclass(frozen=True)
class NgramVectors:
    """What one layer takes from the weights beside its matrices."""

    key_scale: torch.Tensor  # [width]
    conv_scale: torch.Tensor  # [width]
    conv: torch.Tensor  # [conv_kernel, width]: the last tap meets the row itself


@dataclass(frozen=True)
class AskedTable:
    """A table that lies in a file: where a window asks for rows of it, and where somebody else puts them.

    An entry of the mailbox is (row of the table, or -1: an unused row's; place = row * heads + head).
    """

    mailbox: Mailbox  # out float32 [most rows, heads, columns of a table row]
    state: PlanState
    index: int  # by which whoever answers knows the table

    @property
    def columns(self) -> int:
        """Of all heads together."""
        return self.mailbox.out[0].numel()


def check_gather(rows: WindowRows, history: torch.Tensor, table: PackedMatrix, hash: NgramHash, out: RowsOut) -> None:
    """Raises ValueError for what `ngram_gather` cannot take."""
    _check_hash(hash, history)
    width = table.layout.columns
    if out.plain is not None:
        check_tensor("out.plain", out.plain, (rows.count, hash.heads * width))
    if out.plain is None and (out.quantized is None or width % BLOCK_COLUMNS):
        raise ValueError(
            f"out.plain is missing: table rows of {width} columns are quantized by themselves only where "
            f"{BLOCK_COLUMNS} divides them and out.quantized is given"
        )


def check_ask(rows: WindowRows, history: torch.Tensor, hash: NgramHash, asked: AskedTable) -> None:
    """Raises ValueError for what `ngram_ask` cannot take."""
    _check_hash(hash, history)
    _check_asked(rows, asked)
    if asked.mailbox.out.shape[1] != hash.heads:
        raise ValueError(f"a mailbox of {asked.mailbox.out.shape[1]} heads for a hash of {hash.heads}")


def check_collect(rows: WindowRows, asked: AskedTable, out: RowsOut) -> None:
    """Raises ValueError for what `ngram_collect` cannot take."""
    _check_asked(rows, asked)
    if out.plain is None and out.quantized is None:
        raise ValueError("out has neither plain nor quantized rows: give one of them")
    if out.plain is not None:
        check_tensor("out.plain", out.plain, (rows.count, asked.columns))
    if out.quantized is not None and asked.columns % BLOCK_COLUMNS:
        raise ValueError(f"{asked.columns} columns are not quantized: {BLOCK_COLUMNS} does not divide them")


def _check_hash(hash: NgramHash, history: torch.Tensor) -> None:
    if hash.ngram_size < 2 or hash.heads % hash.history_rows:
        raise ValueError(f"{hash.heads} heads are not the same number for each order 2 .. {hash.ngram_size}")
    for name in ("multipliers", "head_sizes", "head_starts"):
        values = getattr(hash, name)
        check_tensor(f"hash.{name}", values, (values.numel(),), torch.int64)
    check_tensor("history", history, (history.shape[0], hash.history_rows), torch.int32)


def _check_asked(rows: WindowRows, asked: AskedTable) -> None:
    most_rows, heads, columns = asked.mailbox.out.shape
    if not 1 <= rows.count <= most_rows:
        raise ValueError(f"{rows.count} rows do not fit a mailbox of {most_rows}")
    check_tensor("mailbox.out", asked.mailbox.out, (most_rows, heads, columns))
    check_tensor("mailbox.entries", asked.mailbox.entries, (most_rows * heads, 2), torch.int32)
    check_tensor("mailbox.header", asked.mailbox.header, (HEADER_FIELDS,), torch.int32)


def check_finish(
    products: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: WindowRows,
    tail: torch.Tensor,
    vectors: NgramVectors,
    shape: NgramRowsShape,
    normed: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Raises ValueError for what `ngram_finish` cannot take."""
    wide = (rows.count, shape.width)
    check_tensor("key", products[0], wide)
    check_tensor("value", products[1], (rows.count, shape.hidden))
    check_tensor("query_normed", products[2], wide)
    check_tensor("tail", tail, (tail.shape[0], shape.tail_rows, shape.width))
    check_tensor("vectors.key_scale", vectors.key_scale, (shape.width,))
    check_tensor("vectors.conv_scale", vectors.conv_scale, (shape.width,))
    check_tensor("vectors.conv", vectors.conv, (shape.conv_kernel, shape.width))
    check_tensor("normed", normed, wide)
    check_tensor("out", out, wide)


def check_commit(
    history: torch.Tensor, tails: torch.Tensor, normed: torch.Tensor, rows: WindowRows, accepted: torch.Tensor
) -> None:
    """Raises ValueError for what `commit_ngram` cannot take."""
    check_tensor("history", history, (history.shape[0], history.shape[1]), torch.int32)
    layers, _, tail_rows, width = tails.shape
    check_tensor("tails", tails, (layers, history.shape[0], tail_rows, width))
    check_tensor("normed", normed, (layers, rows.count, width))
    check_tensor("accepted", accepted, (rows.segments,), torch.int32)
