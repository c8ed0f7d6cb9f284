"""The doorbell service: C++ threads answer windows that ring in shared memory, without a call from Python.

Knows mailboxes and which experts they may ask for; who rings (a GPU, a test's thread) is not seen from here.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from strata.experts.pool import native_layout
from strata.native import abi, library
from strata.native.closing import Closing
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout

RAISED = 0x7FFFFFFF  # what every done flag is after a stop
HEADER_FIELDS = 3  # layer, rows, entries
FLAG_STRIDE = 16  # int32: flags that two sides write lie on cache lines of their own


@dataclass(frozen=True)
class LayerExperts:
    """The experts of one layer: addresses of their blobs by expert number, 0 for one that is not in main memory."""

    layout: BlobLayout
    addresses: Sequence[int]


@dataclass(frozen=True)
class Mailbox:
    """The shared memory of one window in flight; a request is written first, then `door` rises by 1.

    The answer: rows of `out` and `status` (0: done), then `done` reaches the door's number. Flags only rise.
    """

    door: torch.Tensor  # int32 [1]
    done: torch.Tensor  # int32 [1]
    status: torch.Tensor  # int32 [1]
    header: torch.Tensor  # int32 [3]: layer, rows, entries
    entries: torch.Tensor  # int32 [max_entries, 2]: expert, slot = row * ranks + rank
    x: torch.Tensor | None  # float32 [max_rows, hidden], or None where the window quantizes:
    q: torch.Tensor | None  # int8 [max_rows, hidden]
    d: torch.Tensor | None  # float32 [max_rows, hidden / 32]
    out: torch.Tensor  # float32 [max_rows, ranks, hidden]

    @classmethod
    def create(
        cls, max_rows: int, ranks: int, hidden: int, *, is_quantized: bool = False, is_pinned: bool = False
    ) -> "Mailbox":
        """A mailbox in new memory, pinned for a GPU if asked to."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, pin_memory=is_pinned)

        flags = zeros(4, FLAG_STRIDE)
        return cls(
            flags[0, :1],
            flags[1, :1],
            flags[2, :1],
            flags[3, :HEADER_FIELDS],
            zeros(max_rows * ranks, 2),
            None if is_quantized else zeros(max_rows, hidden, dtype=torch.float32),
            zeros(max_rows, hidden, dtype=torch.int8) if is_quantized else None,
            zeros(max_rows, hidden // 32, dtype=torch.float32) if is_quantized else None,
            zeros(max_rows, ranks, hidden, dtype=torch.float32),
        )

    def as_struct(self) -> abi.Mailbox:
        """The mailbox as the library takes it. Raises ValueError for a tensor of another type or with gaps."""
        types = dict.fromkeys(("door", "done", "status", "header", "entries"), torch.int32)
        types |= {"x": torch.float32, "q": torch.int8, "d": torch.float32, "out": torch.float32}
        made = abi.Mailbox()
        for name, dtype in types.items():
            tensor = getattr(self, name)
            if tensor is not None and (tensor.dtype != dtype or not tensor.is_contiguous()):
                raise ValueError(f"{name} of a mailbox must be contiguous {dtype}, not {tensor.dtype}")
            setattr(made, name, None if tensor is None else tensor.data_ptr())
        made.max_rows, made.ranks, made.hidden = self.out.shape
        made.max_entries = self.entries.shape[0]
        return made


class DoorbellService(Closing):
    """Runs until it is stopped; a stop at any moment raises every done flag."""

    def __init__(self, pool: Pool, layers: Sequence[LayerExperts], mailboxes: Sequence[Mailbox]) -> None:
        """The caller keeps the blobs' memory alive; pool and mailboxes are kept here."""
        self._service: ctypes.c_void_p | None = None
        self._kept = (pool, tuple(mailboxes))
        described = [_native_layer(layer) for layer in layers]
        boxes = (abi.Mailbox * len(mailboxes))(*(mailbox.as_struct() for mailbox in mailboxes))
        made = ctypes.c_void_p()
        create = library.load().strata_doorbell_create
        structs = (abi.LayerExperts * len(layers))(*described)
        library.check(create(pool.handle, structs, len(layers), boxes, len(mailboxes), ctypes.byref(made)))
        self._service = made

    @contextmanager
    def window(self, mailbox: int) -> Iterator[None]:
        """While the block runs this mailbox may ring; when none is in flight the service sleeps."""
        library.check(library.load().strata_doorbell_begin(self._service, mailbox))
        try:
            yield
        finally:
            library.check(library.load().strata_doorbell_end(self._service, mailbox))

    def rewind(self, mailbox: int) -> None:
        """Both flags back to 0, between windows: long before they reach their maximum."""
        library.check(library.load().strata_doorbell_rewind(self._service, mailbox))

    def stop(self) -> None:
        """End the service and raise every done flag to RAISED. Harmless at any moment and twice."""
        if self._service is not None:
            library.load().strata_doorbell_stop(self._service)

    def close(self) -> None:
        """Stop and free; no window may be running its block any more."""
        service, self._service = self._service, None
        if service is not None:
            library.load().strata_doorbell_destroy(service)


def _native_layer(layer: LayerExperts) -> abi.LayerExperts:
    blobs = (ctypes.c_void_p * len(layer.addresses))(*(address or None for address in layer.addresses))
    made = abi.LayerExperts(expert_count=len(layer.addresses))
    made.layout = ctypes.pointer(native_layout(layer.layout))
    made.blobs = blobs
    return made
