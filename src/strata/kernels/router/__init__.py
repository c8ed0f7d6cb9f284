"""Which experts a window's rows go to, by which weights, and the list of work: checks, and the choice of road.

Knows no expert's bytes and no arithmetic.
"""

from dataclasses import dataclass

import torch

from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows

MOST_EXPERTS = 4096  # one warp holds a row's logits
MOST_ROWS = 32  # the rows of an expert are bits of a word
MARKS = 2 * MOST_EXPERTS + 2  # words of `Routes.marks`


@dataclass(frozen=True)
class Routes:
    """Where rows go: filled by `route_rows`, read by the experts' kernels and by whoever adds their rows up.

    ids int32 and weights float32 [rows, ranks], best first; an unused row has ids -1 and weights 0, and no place of it
    is in `work`. shared_weights float32 [rows]: the gate of the shared expert, where there is one. marks: what the
    programs of a launch leave for the last of them, which makes it ready for the next launch; nobody else reads it.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    work: ExpertWork
    marks: torch.Tensor
    shared_weights: torch.Tensor | None = None

    @classmethod
    def empty(cls, rows: int, ranks: int, device: torch.device | str, has_shared_gate: bool) -> "Routes":
        """Room for a bucket of rows."""
        ids = torch.full((rows, ranks), -1, dtype=torch.int32, device=device)
        weights = torch.zeros(rows, ranks, dtype=torch.float32, device=device)
        shared = torch.zeros(rows, dtype=torch.float32, device=device) if has_shared_gate else None
        marks = torch.zeros(MARKS, dtype=torch.int32, device=device)
        return cls(ids, weights, ExpertWork.empty(rows, ranks, device), marks, shared)


@dataclass(frozen=True)
class SharedGate:
    """What the shared expert's weight is made of: sigmoid(x . gate)."""

    x: torch.Tensor  # float32 [rows, hidden]
    gate: torch.Tensor  # float32 [hidden]


def route_rows(
    logits: torch.Tensor, rows: WindowRows, normalize: bool, routes: Routes, shared: SharedGate | None = None
) -> None:
    """Fill `routes` from logits float32 [rows, experts], which may lie in a wider matrix (any row stride).

    Softmax over all experts; the best ranks by their logits, the lower id first among equals; if `normalize`, the
    chosen shares are divided by their sum. The work lists distinct experts in rising order, their places rising, with
    as many entries as there are places: the rest is empty. One launch. Raises ValueError for other shapes or types.
    """
    check_routing(logits, rows, routes, shared)
    if takes_reference(logits):
        from strata.kernels.router.reference import route_rows as by_definition

        by_definition(logits, rows, normalize, routes, shared)
        return
    from strata.kernels.router.triton import route_rows as by_kernels

    by_kernels(logits, rows, normalize, routes, shared)


def check_routing(logits: torch.Tensor, rows: WindowRows, routes: Routes, shared: SharedGate | None) -> None:
    """Raise ValueError for shapes or types that `route_rows` does not take."""
    count, ranks = routes.ids.shape
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1 or logits.shape[0] != count:
        raise ValueError(f"logits must be float32 [{count}, experts], not {logits.dtype} {list(logits.shape)}")
    if not ranks <= logits.shape[1] <= MOST_EXPERTS:
        raise ValueError(f"{logits.shape[1]} experts: a row goes to {ranks}, and {MOST_EXPERTS} are the most")
    if count > MOST_ROWS:
        raise ValueError(f"{count} rows in one window; {MOST_ROWS} are the most")
    if rows.count != count or routes.work.places.numel() != count * ranks:
        places = routes.work.places.numel()
        raise ValueError(f"{count} rows of {ranks} ranks, a window of {rows.count} rows, work for {places} places")
    if (shared is None) != (routes.shared_weights is None):
        raise ValueError("a shared gate and room for its weights are given together or not at all")
    if shared is not None:
        wanted = (count, shared.gate.numel())
        if tuple(shared.x.shape) != wanted or shared.x.dtype != torch.float32 or not shared.x.is_contiguous():
            found = f"{shared.x.dtype} {list(shared.x.shape)}"
            raise ValueError(f"x must be contiguous float32 {list(wanted)}, not {found}")
        if shared.gate.dtype != torch.float32:
            raise ValueError(f"the shared gate must be float32, not {shared.gate.dtype}")
