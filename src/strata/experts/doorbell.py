"""The doorbell service: C++ threads answer windows that ring in shared memory, without a call from Python.

Knows mailboxes and which experts they may ask for; who rings (a GPU, a test's thread) is not seen from here.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from strata.experts.expert_files import ReadCache
from strata.experts.pool import native_layout
from strata.kernels.expert_plan.tables import Mailbox
from strata.native import abi, library
from strata.native.closing import Closing
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout

# A request is 3 to 4,000 us of work on an idle PC. One that the system has swapped out waits for its disk: 32 rows ask
# for at most 320 experts of 3 MB, which are 10 s at 100 MB/s. Behind that nobody answers any more.
ANSWER_LIMIT_S = 30.0


@dataclass(frozen=True)
class LayerExperts:
    """The experts of one layer: addresses of their blobs by expert number, 0 for one that is not in main memory."""

    layout: BlobLayout
    addresses: Sequence[int]


@dataclass(frozen=True)
class DoorbellCounters:
    """What a service has done since it was made."""

    requests: int
    experts: int  # distinct ones of each request
    bytes: int  # of their blobs
    busy_ns: int  # from reading requests to raising their done flags


@dataclass(frozen=True)
class DoorbellState:
    """A look at a mailbox, at any moment; layer, rows and entries are those of the last request."""

    door: int
    done: int
    answered: int
    layer: int
    rows: int
    entries: int
    is_in_flight: bool
    is_late: bool  # of the whole service: a request waited longer than its limit, and every flag was raised
    failures: int  # requests with an error for an answer, or none within the limit; of the last of them:
    failed_layer: int
    failure: str

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return self.is_in_flight and self.door > self.answered


class Doorbell(Closing):
    """A service of either kind: runs until it is stopped. A stop at any moment raises all flags, and so does a request
    that waits too long.

    In a process that was forked from this one it can do nothing, and ends without harm.
    """

    _service: ctypes.c_void_p | None = None

    def __init__(self, create: Callable[[ctypes.c_void_p], int], kept: object) -> None:
        """`create` makes the service where it is told to; `kept` lives as long as its threads may."""
        self._kept = kept
        made = ctypes.c_void_p()
        library.check(create(made))
        self._service = made

    def begin(self, mailbox: int) -> None:
        """From now on this mailbox may ring; what it asked before and has no answer to is never answered.

        Raises EngineError if the service was stopped.
        """
        library.check(library.load().strata_doorbell_begin(self._service, mailbox))

    def end(self, mailbox: int) -> None:
        """No window rings in it any more, and behind this none is answered; with none in flight the service sleeps."""
        library.check(library.load().strata_doorbell_end(self._service, mailbox))

    def rewind(self, mailbox: int) -> None:
        """Both flags back to 0, between windows: long before they reach their maximum."""
        library.check(library.load().strata_doorbell_rewind(self._service, mailbox))

    def state(self, mailbox: int) -> DoorbellState:
        """A look at a mailbox; waits for nobody."""
        found = abi.DoorbellState()
        library.check(library.load().strata_doorbell_state(self._service, mailbox, ctypes.byref(found)))
        flags = (found.door, found.done, found.answered)
        asked = (found.layer, found.rows, found.entries, bool(found.is_in_flight), bool(found.is_late))
        return DoorbellState(*flags, *asked, found.failures, found.failed_layer, found.failure.decode(errors="replace"))

    def stop(self) -> None:
        """End the service and raise every done flag, then every gate, to RAISED. Harmless at any moment and twice.

        Returns after two seconds at most, even if a thread is stuck in a request.
        """
        if self._service is not None:
            library.load().strata_doorbell_stop(self._service)

    def close(self) -> None:
        """Stop and free; no window may be running its block any more."""
        service, self._service = self._service, None
        if service is not None and library.load().strata_doorbell_destroy(service):
            # A thread that is stuck in a request may still read and write: what it has stays until the process ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._kept))


class DoorbellService(Doorbell):
    """Answers with rows that a pool's threads compute of experts."""

    def __init__(
        self,
        pool: Pool,
        layers: Sequence[LayerExperts],
        mailboxes: Sequence[Mailbox],
        limit_s: float = ANSWER_LIMIT_S,
        memory: object = None,
        reads: ReadCache | None = None,
    ) -> None:
        """Pool, mailboxes, `memory` and `reads` are kept here; the caller keeps blobs alive that are not part of it.

        reads: gives the experts whose address is 0; None: to ask for one is an error. As long as experts arrive from
        there a request is not late.
        """
        structs = (abi.LayerExperts * len(layers))(*(_native_layer(layer) for layer in layers))
        boxes, create = as_structs(mailboxes), library.load().strata_doorbell_create

        def make(made: ctypes.c_void_p) -> int:
            sizes = len(layers), boxes, len(mailboxes), limit_ms(limit_s)
            return int(create(pool.handle, structs, *sizes, ctypes.byref(made)))

        super().__init__(make, (pool, tuple(mailboxes), memory, reads))
        if reads is not None:
            library.check(library.load().strata_doorbell_read(self._service, reads.handle))

    def place(self, layer: int, expert: int, address: int) -> None:
        """Where an expert's blob lies from now on, 0 for nowhere; also while windows are in flight.

        The old blob keeps its bytes until no window that may ask for it is left. Raises EngineError for an expert that
        does not exist.
        """
        library.check(library.load().strata_doorbell_place(self._service, layer, expert, address or None))

    def counters(self) -> DoorbellCounters:
        """What it has done so far."""
        found = abi.DoorbellCounters()
        library.check(library.load().strata_doorbell_counters(self._service, ctypes.byref(found)))
        return DoorbellCounters(found.requests, found.experts, found.bytes, found.busy_ns)


def limit_ms(limit_s: float) -> int:
    """A limit as the library takes it."""
    return max(1, round(limit_s * 1e3))


def as_structs(mailboxes: Sequence[Mailbox]) -> "ctypes.Array[abi.Mailbox]":
    """Mailboxes one after another. Raises what `as_struct` raises."""
    return (abi.Mailbox * len(mailboxes))(*map(as_struct, mailboxes))


def as_struct(mailbox: Mailbox) -> abi.Mailbox:
    """A mailbox as the library takes it. Raises ValueError for a tensor of another type or with gaps."""
    types = dict.fromkeys(("door", "done", "gate", "status", "header", "entries"), torch.int32)
    types |= {"x": torch.float32, "q": torch.int8, "d": torch.float32, "out": torch.float32}
    made = abi.Mailbox()
    for name, dtype in types.items():
        tensor = getattr(mailbox, name)
        if tensor is not None and (tensor.dtype != dtype or not tensor.is_contiguous()):
            raise ValueError(f"{name} of a mailbox must be contiguous {dtype}, not {tensor.dtype}")
        setattr(made, name, None if tensor is None else tensor.data_ptr())
    made.max_rows, made.ranks, made.hidden = mailbox.out.shape
    made.max_entries = mailbox.entries.shape[0]
    return made


def _native_layer(layer: LayerExperts) -> abi.LayerExperts:
    blobs = (ctypes.c_void_p * len(layer.addresses))(*(address or None for address in layer.addresses))
    made = abi.LayerExperts(expert_count=len(layer.addresses))
    made.layout = ctypes.pointer(native_layout(layer.layout))
    made.blobs = blobs
    return made
