"""Expert rows as docs/storage-codes.md defines them: checks, and a name for the Triton road. Knows no model."""

import torch

from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork


def expert_rows_on_gpu(blobs: ExpertBlobs, work: ExpertWork, x: torch.Tensor, out: torch.Tensor) -> None:
    """Compute the listed places of out float32 [rows, ranks, hidden] from x float32 [rows, hidden]; leave others alone.

    The blobs lie in the GPU's memory or in pinned host memory; the bits are those of `reference.expert_rows` and of the
    C++ library. Launches only: safe to capture in a graph.
    """
    hidden = blobs.layout.gate.columns
    wanted = (x.shape[0], work.ranks, hidden)
    if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != hidden or not x.is_contiguous():
        raise ValueError(f"rows must be contiguous float32 [n, {hidden}], not {x.dtype} {list(x.shape)}")
    if out.dtype != torch.float32 or tuple(out.shape) != wanted or not out.is_contiguous():
        raise ValueError(f"out must be contiguous float32 {list(wanted)}, not {out.dtype} {list(out.shape)}")
    if work.places.numel() and work.seats.numel():
        from strata.kernels.expert_rows import triton

        triton.expert_rows(blobs, work, x, out)
