"""A layer's experts over given buffers as they are defined: one expert after another. Knows no thread and no launch."""

import ctypes

import torch

from strata.kernels.expert_rows.buffers import ExpertBuffers, SharedExpert
from strata.kernels.expert_rows.reference import expert_rows, silu_times
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.packed_rows.reference import in_host_memory, packed_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.packed import PackedMatrix, view_matrix


def expert_rows_into(
    blobs: ExpertBlobs, work: ExpertWork, x: RowsOut, buffers: ExpertBuffers, shared: SharedExpert | None
) -> None:
    """See `strata.kernels.expert_rows.expert_rows_into`; any device, computed on the CPU."""
    assert x.plain is not None  # checked by the caller
    rows, starts, places = x.plain.cpu(), work.starts.tolist(), work.places.long()
    by_place = buffers.by_rank.view(-1, buffers.by_rank.shape[-1])
    for entry, seat in enumerate(work.seats.tolist()):
        listed = places[starts[entry] : starts[entry + 1]]
        if listed.numel():
            computed = expert_rows(*expert_matrices(blobs, seat), rows[listed.cpu() // work.ranks])
            by_place[listed] = computed.to(by_place.device)
    if shared is not None:
        assert buffers.shared_rows is not None
        gate, up = shared.gate_up.contiguous().chunk(2, dim=1)
        buffers.shared_rows.copy_(packed_rows(shared.down, silu_times(gate, up)))


def expert_matrices(blobs: ExpertBlobs, seat: int) -> tuple[PackedMatrix, PackedMatrix, PackedMatrix]:
    """Gate, up and down of the blob in a seat, in host memory."""
    layout, blob = blobs.layout, blob_bytes(blobs, seat)
    posts = layout.post_scales
    factors = blob[posts.offset : posts.offset + posts.size].clone().view(torch.float32).tolist()
    gate, up, down = (
        in_host_memory(view_matrix(matrix, blob, places, factor))
        for matrix, places, factor in zip(layout.matrices, layout.places(), factors, strict=True)
    )
    return gate, up, down


def blob_bytes(blobs: ExpertBlobs, seat: int) -> torch.Tensor:
    """The blob in a seat where it lies, uint8 [stride]: in `memory`, or at an address that the device can read."""
    offset = seat * blobs.stride
    if blobs.addresses is not None:
        address = int(blobs.addresses[seat])
        offset = address - blobs.memory.data_ptr()
        if not 0 <= offset <= blobs.memory.numel() - blobs.stride:
            return _at_address(address, blobs.stride, blobs.addresses.device)
    return blobs.memory[offset : offset + blobs.stride]


def _at_address(address: int, size: int, device: torch.device) -> torch.Tensor:
    """Bytes of whatever memory a device can read, pinned main memory too; who owns them keeps them alive."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(_DeviceBytes(address, size), device=device)


class _DeviceBytes:
    """What torch makes a tensor on a GPU of, without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
