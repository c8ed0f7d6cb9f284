"""Experts on the CPU: lists of (expert, rows) and the combination of their rows, through the C++ library.

Knows blobs, rows and ranks; which experts come here is decided above, how they are computed below.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.kernels.packed_rows.native import native_form
from strata.native import abi, library
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout


@dataclass(frozen=True)
class ExpertRows:
    """One expert and the rows that chose it."""

    blob: torch.Tensor  # uint8 [layout.total_bytes] at a multiple of 64 bytes
    rows: torch.Tensor  # int32 [n]: rows of x
    slots: torch.Tensor  # int32 [n]: row * ranks + rank, where the results go


def native_layout(layout: BlobLayout) -> abi.ExpertLayout:
    """Where the library finds an expert's arrays. Raises ValueError if it disagrees with the blob's layout."""
    found = abi.ExpertLayout(native_form(layout.gate), native_form(layout.up), native_form(layout.down))
    library.check(library.load().strata_expert_layout(ctypes.byref(found)))
    if (found.blob_bytes, found.post_scales_offset) != (layout.total_bytes, layout.post_scales.offset):
        raise ValueError(f"a blob of {layout.total_bytes} bytes, the library lays out {found.blob_bytes}")
    return found


class ExpertList:
    """Experts and rows, checked once and ready for the library; keeps their tensors alive."""

    def __init__(self, layout: BlobLayout, experts: Sequence[ExpertRows]) -> None:
        self._experts = tuple(experts)
        self.jobs = (abi.ExpertJob * len(experts))()
        self.count = len(experts)
        self.slots_needed = 0
        for job, expert in zip(self.jobs, experts, strict=True):
            _check_expert(expert, layout.total_bytes)
            job.blob, job.row_count = expert.blob.data_ptr(), expert.rows.numel()
            job.rows, job.slots = expert.rows.data_ptr(), expert.slots.data_ptr()
            if job.row_count:
                self.slots_needed = max(self.slots_needed, int(expert.slots.max()) + 1)


class ExpertPool:
    """Experts of one layout on a thread pool."""

    def __init__(self, pool: Pool, layout: BlobLayout) -> None:
        self.pool = pool
        self.layout = layout
        self._native = native_layout(layout)

    def compute(self, experts: Sequence[ExpertRows], x: torch.Tensor, out: torch.Tensor) -> None:
        """out[slot] = the expert's row for every (expert, row) listed; other slots are not touched.

        x float32 [rows, hidden]; out float32 [rows, ranks, hidden] or [slots, hidden], contiguous.
        """
        self.compute_list(ExpertList(self.layout, experts), x, out)

    def compute_list(self, experts: ExpertList, x: torch.Tensor, out: torch.Tensor) -> None:
        """The same for a list that was checked before."""
        hidden = self.layout.gate.columns
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != hidden or x.stride(1) != 1:
            raise ValueError(f"x must be float32 [rows, {hidden}], not {x.dtype} {list(x.shape)}")
        if out.dtype != torch.float32 or not out.is_contiguous() or out.shape[-1] != hidden:
            raise ValueError(f"out must be contiguous float32 [.., {hidden}], not {out.dtype} {list(out.shape)}")
        if experts.slots_needed > out.numel() // hidden:
            raise ValueError(f"slot {experts.slots_needed - 1} of {out.numel() // hidden}")
        layout, where = ctypes.byref(self._native), (x.data_ptr(), x.stride(0), x.shape[0])
        call = library.load().strata_experts
        library.check(call(self.pool.handle, layout, experts.jobs, experts.count, *where, out.data_ptr(), hidden))


def _check_expert(expert: ExpertRows, blob_bytes: int) -> None:
    if expert.blob.dtype != torch.uint8 or expert.blob.numel() != blob_bytes or not expert.blob.is_contiguous():
        raise ValueError(f"a blob must be {blob_bytes} contiguous uint8, not {list(expert.blob.shape)}")
    for name, indices in (("rows", expert.rows), ("slots", expert.slots)):
        if indices.dtype != torch.int32 or not indices.is_contiguous():
            raise ValueError(f"{name} must be contiguous int32, not {indices.dtype}")
    if expert.rows.numel() != expert.slots.numel():
        raise ValueError(f"{expert.rows.numel()} rows for {expert.slots.numel()} slots")


def group_by_expert(choices: torch.Tensor, blobs: dict[int, torch.Tensor]) -> list[ExpertRows]:
    """choices [rows, ranks] of expert numbers -> every expert of `blobs` that was chosen, with its rows and slots."""
    ranks = choices.shape[1]
    flat = choices.reshape(-1)
    order = torch.argsort(flat, stable=True)
    numbers, counts = torch.unique_consecutive(flat[order], return_counts=True)
    grouped = zip(numbers.tolist(), order.int().split(counts.tolist()), strict=True)
    return [
        ExpertRows(blobs[number], slots.div(ranks, rounding_mode="floor").contiguous(), slots.contiguous())
        for number, slots in grouped
        if number in blobs
    ]


def combine(
    pool: Pool,
    rows: torch.Tensor,
    weights: torch.Tensor,
    is_computed: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """rows [n, ranks, hidden], weights [n, ranks] -> [n, hidden], as kernels/expert_rows/reference.py defines it."""
    count, ranks, hidden = rows.shape
    rows, weights = rows.contiguous(), weights.contiguous()
    mask = None if is_computed is None else is_computed.to(torch.uint8).contiguous()
    shared = None if shared is None else shared.contiguous()
    for name, tensor in (("rows", rows), ("weights", weights), ("shared", shared)):
        if tensor is not None and tensor.dtype != torch.float32:
            raise ValueError(f"{name} must be float32, not {tensor.dtype}")
    out = rows.new_empty(count, hidden)
    call = library.load().strata_combine
    pointers = [None if each is None else each.data_ptr() for each in (mask, shared)]
    library.check(
        call(
            pool.handle,
            count,
            ranks,
            hidden,
            rows.data_ptr(),
            weights.data_ptr(),
            *pointers,
            hidden,
            None,
            out.data_ptr(),
            hidden,
        )
    )
    return out
