"""Experts of a read: which rows go where, their products on the matrix units, and the sum of the ranks.

Checks, and the choice of road; knows no arithmetic and no model. A *place* is row * ranks + rank; rows of `hidden` lie
in the order of the work, by expert. `chosen` says which experts a launch computes - those with a seat, or one streamed
tile -: experts are independent of one another, so the calls may cut them in any way, and every bit stays.
"""

from dataclasses import dataclass

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.roads import takes_reference
from strata.quant.layout import BlobLayout

MOST_EXPERTS = 4096  # one warp holds a row's logits
MOST_ELEMENTS = 1 << 31  # rows are addressed by 32 bits
TILE_ROWS = 128  # no tile of rows but an expert's last one has fewer


@dataclass(frozen=True)
class ReadWork:
    """The places of a read sorted by expert, and where each expert's begin; int32, on the computing device.

    order [rows * ranks]: places, by (expert, place). starts [experts + 1]: expert e has order[starts[e] : starts[e+1]].
    """

    order: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def empty(cls, places: int, experts: int, device: torch.device | str) -> "ReadWork":
        """Room for `places` places of `experts` experts; nothing is listed yet."""
        return cls(
            torch.zeros(places, dtype=torch.int32, device=device),
            torch.zeros(experts + 1, dtype=torch.int32, device=device),
        )

    def of_places(self, places: int) -> "ReadWork":
        """The work of a read of fewer places, in the same memory."""
        return ReadWork(self.order[:places], self.starts)


@dataclass(frozen=True)
class ReadExperts:
    """Experts that a launch computes: blobs of one layout, by address.

    addresses int64 [experts]: where the blob of each expert lies in memory that the device reads, multiples of 256;
    those of experts that are not in `chosen` are not looked at. chosen int32 [n]: distinct ids.
    """

    layout: BlobLayout
    addresses: torch.Tensor
    chosen: torch.Tensor


def most_row_tiles(places: int, experts: int) -> int:
    """The most tiles of rows that `experts` experts with `places` places together can have.

    A bound that needs no look at the routing; for `most_tiles` of `experts_hidden` and `experts_down`. With counts at
    hand it may be lower: the sum of ceil(count / TILE_ROWS) over the chosen experts.
    """
    return min(experts, places) + places // TILE_ROWS


def route_many(logits: torch.Tensor, normalize: bool, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """Route rows: logits float32 [rows, experts] (any row stride) -> ids int32 and weights float32 [rows, ranks].

    As `kernels/router` defines it: softmax over all experts, the best ranks by their logits, the lower id first among
    equals; if `normalize`, the chosen shares divided by their sum. Raises ValueError for other shapes or types.
    """
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits must be float32 [rows, experts], not {logits.dtype} {list(logits.shape)}")
    rows, experts = logits.shape
    ranks = ids.shape[-1]
    check_tensor("ids", ids, (rows, ranks), torch.int32)
    check_tensor("weights", weights, (rows, ranks))
    if not 1 <= ranks <= experts <= MOST_EXPERTS:
        raise ValueError(f"{experts} experts: a row goes to {ranks}, and {MOST_EXPERTS} are the most")
    if not rows:
        return
    if takes_reference(logits):
        from strata.kernels.read_experts.reference import route_many as by_definition

        by_definition(logits, normalize, ids, weights)
        return
    from strata.kernels.read_experts.rows import route_many as by_kernels

    by_kernels(logits, normalize, ids, weights)


def group_places(ids: torch.Tensor, work: ReadWork) -> None:
    """Sort the places of ids int32 [rows, ranks] by (expert, place) into `work`; nothing waits for the device.

    A stable sort has one result: the same on every device. Raises ValueError if the work is not room for it.
    """
    experts = work.starts.numel() - 1
    if ids.dtype != torch.int32 or ids.dim() != 2:
        raise ValueError(f"ids must be int32 [rows, ranks], not {ids.dtype} {list(ids.shape)}")
    check_tensor("work.order", work.order, (ids.numel(),), torch.int32)
    check_tensor("work.starts", work.starts, (experts + 1,), torch.int32)
    by_expert, order = torch.sort(ids.reshape(-1), stable=True)
    work.order.copy_(order)
    bounds = torch.arange(experts + 1, dtype=torch.int32, device=ids.device)
    work.starts.copy_(torch.searchsorted(by_expert, bounds))


def count_places(ids: torch.Tensor, asked: torch.Tensor) -> None:
    """Add to asked int32 [experts] how many of the rows take each expert: ids int32 [rows, ranks]."""
    if ids.dtype != torch.int32 or ids.dim() != 2:
        raise ValueError(f"ids must be int32 [rows, ranks], not {ids.dtype} {list(ids.shape)}")
    places = ids.reshape(-1).to(torch.int64)
    asked.scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))


def experts_hidden(
    experts: ReadExperts, x: torch.Tensor, work: ReadWork, most_tiles: int, hidden: torch.Tensor
) -> None:
    """silu(gate) * up of the chosen experts' places: x bf16 [rows, hidden size] -> hidden bf16 [places, width].

    Rows of `hidden` are in the order of the work; those of other experts are left alone. most_tiles: see
    `most_row_tiles`; a bound that is too low loses rows. Raises ValueError for other shapes or types.
    """
    places, width, columns = work.order.numel(), experts.layout.gate.rows, experts.layout.gate.columns
    check_tensor("x", x, (x.shape[0], columns), torch.bfloat16)
    check_tensor("hidden", hidden, (places, width), torch.bfloat16)
    _check_experts(experts, work, most_tiles)
    _check_ranks(places, x.shape[0])
    _check_elements(x, hidden)
    if not places or not experts.chosen.numel():
        return
    if takes_reference(x):
        from strata.kernels.read_experts.reference import experts_hidden as by_definition

        by_definition(experts, x, work, hidden)
        return
    from strata.kernels.read_experts.triton import experts_hidden as by_kernels

    by_kernels(experts, x, work, most_tiles, hidden)


def experts_down(
    experts: ReadExperts, hidden: torch.Tensor, work: ReadWork, most_tiles: int, by_rank: torch.Tensor
) -> None:
    """Down of the chosen experts' places: hidden bf16 [places, width] -> by_rank bf16 [rows, ranks, hidden size].

    Places of other experts are left alone; `most_tiles` as in `experts_hidden`. Raises ValueError for other shapes or
    types.
    """
    layout = experts.layout.down
    rows, ranks = by_rank.shape[:2]
    check_tensor("hidden", hidden, (work.order.numel(), layout.columns), torch.bfloat16)
    check_tensor("by_rank", by_rank, (rows, ranks, layout.rows), torch.bfloat16)
    _check_experts(experts, work, most_tiles)
    if rows * ranks != work.order.numel():
        raise ValueError(f"by_rank has {rows} rows of {ranks} ranks, the work {work.order.numel()} places")
    _check_elements(hidden)
    if not hidden.shape[0] or not experts.chosen.numel():
        return
    if takes_reference(hidden):
        from strata.kernels.read_experts.reference import experts_down as by_definition

        by_definition(experts, hidden, work, by_rank)
        return
    from strata.kernels.read_experts.triton import experts_down as by_kernels

    by_kernels(experts, hidden, work, most_tiles, by_rank)


def combine_ranks(
    by_rank: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor | None,
    shared_weights: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Sum the ranks: by_rank bf16 [rows, ranks, hidden], weights float32 [rows, ranks] -> out float32 [rows, hidden].

    fma(weight, row) in rank order from +0, then the shared expert's row bf16 [rows, hidden] as one rank more, of weight
    shared_weights float32 [rows], or 1. Raises ValueError for other shapes or types.
    """
    rows, ranks, hidden = by_rank.shape
    check_tensor("by_rank", by_rank, (rows, ranks, hidden), torch.bfloat16)
    check_tensor("weights", weights, (rows, ranks))
    check_tensor("shared", shared, (rows, hidden), torch.bfloat16)
    check_tensor("shared_weights", shared_weights, (rows,))
    check_tensor("out", out, (rows, hidden))
    if shared is None and shared_weights is not None:
        raise ValueError("shared_weights are the weights of shared rows, which are missing")
    if not rows:
        return
    if takes_reference(by_rank):
        from strata.kernels.read_experts.reference import combine_ranks as by_definition

        by_definition(by_rank, weights, shared, shared_weights, out)
        return
    from strata.kernels.read_experts.rows import combine_ranks as by_kernels

    by_kernels(by_rank, weights, shared, shared_weights, out)


def _check_experts(experts: ReadExperts, work: ReadWork, most_tiles: int) -> None:
    count = work.starts.numel() - 1
    check_tensor("work.order", work.order, (work.order.numel(),), torch.int32)
    check_tensor("work.starts", work.starts, (count + 1,), torch.int32)
    check_tensor("experts.addresses", experts.addresses, (count,), torch.int64)
    check_tensor("experts.chosen", experts.chosen, (experts.chosen.numel(),), torch.int32)
    if not 0 <= experts.chosen.numel() <= count <= MOST_EXPERTS:
        raise ValueError(f"{experts.chosen.numel()} chosen of {count} experts; {MOST_EXPERTS} are the most")
    if most_tiles < 0:
        raise ValueError(f"most_tiles is {most_tiles}: give `most_row_tiles(places, experts)`")


def _check_ranks(places: int, rows: int) -> None:
    if (rows == 0 and places) or (rows and places % rows):
        raise ValueError(f"{places} places are no whole number of ranks of {rows} rows")


def _check_elements(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.numel() >= MOST_ELEMENTS:
            raise ValueError(f"{list(tensor.shape)} has {tensor.numel()} elements: read fewer rows at once")
