"""Several matrices times the same rows, and a layer's experts over given buffers, by Triton against their definitions.

For the interpreter and for a GPU; on a GPU the buffers are those that the product makes. Results are compared as bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.kernels.expert_rows import ExpertBuffers, SharedExpert
from strata.kernels.expert_rows.reference import matrix_rows, silu_times
from strata.kernels.expert_rows.reference_window import expert_rows_into as experts_by_definition
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.router.reference import list_work
from strata.quant.layout import BlobLayout, MatrixLayout
from tests.kernels.random_matrices import (
    KINDS,
    moved_work,
    on_device,
    random_choices,
    random_experts,
    random_matrix,
    random_rows,
)

KIND = {kind.name: kind for kind in KINDS}


def room_on(device: torch.device, layouts: Sequence[MatrixLayout], rows: int) -> RowsOut:
    """Both forms on the CPU, where the product would make room for its twins; on a GPU what the product makes."""
    if device.type == "cuda":
        return room_for(layouts, rows, device)
    integer = [layout for layout in layouts if not layout.code.is_float]
    blocks = integer[0].blocks if integer else 0
    quantized = Activations.empty(rows, blocks, device, LaunchShape()) if integer else None
    is_plain = len(integer) < len(layouts)
    return RowsOut(torch.zeros(rows, layouts[0].columns, device=device) if is_plain else None, quantized)


def filled(x: torch.Tensor, room: RowsOut) -> RowsOut:
    """`room` with rows x in it."""
    from strata.kernels.packed_rows.activations import quantize_into

    if room.plain is not None:
        room.plain.copy_(x)
    if room.quantized is not None:
        quantize_into(x.to(room.quantized.values.device), room.quantized)
    return room


def assert_bits(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every bit is equal."""
    differ = int((found.cpu().view(torch.int32) != wanted.cpu().view(torch.int32)).sum())
    assert differ == 0, f"{what}: {differ} of {wanted.numel()} values differ"


@dataclass(frozen=True)
class JoinedCase:
    """Matrices of several kinds under one another."""

    kinds: tuple[str, ...]
    outputs: tuple[int, ...]
    columns: int
    rows: int
    launches: tuple[LaunchShape, ...] | None = None

    def check(self, device: torch.device) -> None:
        """Raise AssertionError unless the products have the bits of the definition."""
        from strata.kernels.packed_rows.joined import multiply_into

        matrices = [
            random_matrix(seed, KIND[kind].layout(outputs, self.columns), (1.0, 0.37)[seed % 2])
            for seed, (kind, outputs) in enumerate(zip(self.kinds, self.outputs, strict=True))
        ]
        x = random_rows(9, self.rows, self.columns)
        rows = filled(x, room_on(device, [matrix.layout for matrix in matrices], self.rows))
        wide = torch.full((self.rows, sum(self.outputs) + 5), float("nan"), device=device)
        out = wide[:, 5:]
        multiply_into([on_device(matrix, device) for matrix in matrices], rows, out, self.launches)
        assert_bits(str(self), out, torch.cat([matrix_rows(matrix, x) for matrix in matrices], dim=1))
        assert bool(wide[:, :5].isnan().all()), f"{self}: wrote outside of its columns"


def experts_into(
    out: torch.Tensor, blobs: ExpertBlobs, work: ExpertWork, x: torch.Tensor, launch: LaunchShape | None = None
) -> None:
    """The product's launches for rows x [rows, hidden] over buffers of their own; out [rows, ranks, hidden]."""
    from strata.kernels.expert_rows import window

    layout, (rows, ranks, _) = blobs.layout, out.shape
    gate_up = torch.full((rows * ranks, 2 * layout.gate.rows), float("nan"), device=out.device)
    buffers = ExpertBuffers(gate_up, room_on(out.device, [layout.down], rows * ranks), out)
    given = filled(x, room_on(out.device, [layout.gate, layout.up], rows))
    window.expert_rows_into(blobs, work, given, buffers, None, launch)


@dataclass(frozen=True)
class ExpertsCase:
    """Rows that choose among a few experts, with a shared expert beside them or without."""

    kinds: tuple[str, str, str]  # gate, up, down
    hidden: int
    width: int
    rows: int
    shared: tuple[str, int] | None = None  # its down's kind, its width
    unused: int = 0
    ranks: int = 2
    experts: int = 4
    launch: LaunchShape | None = None

    def check(self, device: torch.device) -> None:
        """Raise AssertionError unless listed places have the bits of the definition and others what they had."""
        from strata.kernels.expert_rows import window

        gate, up, down = self.kinds
        layout = BlobLayout(
            KIND[gate].layout(self.width, self.hidden),
            KIND[up].layout(self.width, self.hidden),
            KIND[down].layout(self.hidden, self.width),
        )
        experts, x = random_experts(1, layout, self.experts), random_rows(2, self.rows, self.hidden)
        shared, wanted_shared = self._shared(torch.device("cpu")), self._shared(device)
        work, found_work = (self._work(where) for where in (torch.device("cpu"), device))
        found, wanted = (
            self._buffers(layout, device),
            ExpertBuffers.empty(layout, self.rows, self.ranks, "cpu", None if shared is None else shared.down.layout),
        )
        wanted.by_rank.fill_(7.0)
        rows = filled(x, room_on(device, [layout.gate, layout.up], self.rows))
        window.expert_rows_into(experts.moved(device), found_work, rows, found, wanted_shared, self.launch)
        experts_by_definition(experts.blobs, work, RowsOut(x, None), wanted, shared)
        assert_bits(f"{self}: experts", found.by_rank, wanted.by_rank)
        if found.shared_rows is not None and wanted.shared_rows is not None:
            assert_bits(f"{self}: the shared expert", found.shared_rows, wanted.shared_rows)

    def _shared(self, device: torch.device) -> SharedExpert | None:
        if self.shared is None:
            return None
        kind, width = self.shared
        wide = random_rows(3, self.rows, 2 * width + 3).to(device)
        return SharedExpert(wide[:, 3:], on_device(random_matrix(4, KIND[kind].layout(self.hidden, width)), device))

    def _work(self, device: torch.device) -> ExpertWork:
        ids = random_choices(5, self.rows, self.ranks, self.experts).int()
        ids[self.rows - self.unused :] = -1
        work = ExpertWork.empty(self.rows, self.ranks, "cpu")
        list_work(ids, work)
        return moved_work(work, device)

    def _buffers(self, layout: BlobLayout, device: torch.device) -> ExpertBuffers:
        places, down = self.rows * self.ranks, None
        if self.shared is not None:
            down = KIND[self.shared[0]].layout(self.hidden, self.shared[1])
        if device.type == "cuda":
            made = ExpertBuffers.empty(layout, self.rows, self.ranks, device, down)
            made.by_rank.fill_(7.0)
            return made
        return ExpertBuffers(
            torch.full((places, 2 * self.width), float("nan")),
            room_on(device, [layout.down], places),
            torch.full((self.rows, self.ranks, self.hidden), 7.0),
            None if down is None else room_on(device, [down], self.rows),
            None if down is None else torch.full((self.rows, self.hidden), float("nan")),
        )


def check_hidden(kind: str, width: int, rows: int, device: torch.device) -> None:
    """silu(gate) * up as a down matrix of this kind reads it; raises AssertionError for other bits."""
    from strata.kernels.gated_mlp.triton import silu_times_into
    from tests.kernels.quantized_rows import assert_quantized

    gate_up = random_rows(6, rows, 2 * width + 4)
    wanted = silu_times(gate_up[:, 4 : 4 + width].contiguous(), gate_up[:, 4 + width :].contiguous())
    out = room_on(device, [KIND[kind].layout(16, width)], rows)
    silu_times_into(gate_up.to(device)[:, 4:], out)
    if out.plain is not None:
        assert_bits(f"hidden rows of {width} for {kind}", out.plain, wanted)
    if out.quantized is not None:
        assert_quantized(out.quantized, wanted, list(range(rows)))
