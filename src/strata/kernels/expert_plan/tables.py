"""What a layer's plan reads and writes on the computing device: scores, places of experts, counters, the mailbox.

Values only; knows no kernel, no thread and no policy.
"""

from dataclasses import dataclass

import torch

from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.router import SharedGate
from strata.kernels.window_rows import WindowRows

FLAG_STRIDE = 16  # int32: flags that two sides write lie on cache lines of their own
HEADER_FIELDS = 3  # layer, rows, entries
RAISED = 0x7FFFFFFF  # what `done` is after a stop: past every number
OPEN = 1  # what the gate is, at least, where nobody has to wait


@dataclass(frozen=True)
class Mailbox:
    """The shared memory of one window in flight; a request is written first, then `door` rises.

    The answer: rows of `out` and `status` (0: done), then `done` reaches the door's number, then the gate opens. Door
    and done only rise; who lowers the gate, and why nobody waits at it for ever, is in `gate.py`. In main memory;
    pinned where a GPU writes and reads it.
    """

    door: torch.Tensor  # int32 [1]
    done: torch.Tensor  # int32 [1]
    status: torch.Tensor  # int32 [1]: for whoever looks at a mailbox alone; the engine asks the service what failed
    header: torch.Tensor  # int32 [3]: layer, rows, entries
    entries: torch.Tensor  # int32 [max_entries, 2]: expert, place = row * ranks + rank
    x: torch.Tensor | None  # float32 [max_rows, hidden], or None where the window quantizes:
    q: torch.Tensor | None  # int8 [max_rows, hidden]
    d: torch.Tensor | None  # float32 [max_rows, hidden / 32]
    out: torch.Tensor  # float32 [max_rows, ranks, hidden]
    gate: torch.Tensor | None = None  # int32 [1], or None where the number alone is waited for
    # Whether kernels behind a collecting that waits start when the answer is there, not before: they would wait where
    # those of other windows could run meanwhile.
    holds_next: bool = False

    @classmethod
    def create(
        cls,
        max_rows: int,
        ranks: int,
        hidden: int,
        *,
        is_quantized: bool = False,
        is_pinned: bool = False,
        has_gate: bool = False,
        holds_next: bool = False,
    ) -> "Mailbox":
        """A mailbox in new memory, pinned for a GPU if asked to; a gate is open."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, pin_memory=is_pinned)

        flags = zeros(5, FLAG_STRIDE)
        flags[4].fill_(OPEN)
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
            flags[4, :1] if has_gate else None,
            holds_next,
        )


@dataclass(frozen=True)
class RowScores:
    """What a window's rows are routed by; see `strata.kernels.router.route_rows`."""

    logits: torch.Tensor  # float32 [rows, experts]
    rows: WindowRows
    normalize: bool
    shared: SharedGate | None


@dataclass(frozen=True)
class LayerTables:
    """Where the experts of one layer lie, and what its windows asked for; all on the computing device."""

    resident: torch.Tensor  # int64 [experts]: address of the seat that holds an expert, 0: none does
    in_place: torch.Tensor  # int64 [experts]: address of its blob in pinned main memory, 0: not to be read there
    share: torch.Tensor  # int32 [most misses + 1]: how many of n distinct misses the GPU reads in place
    asked: torch.Tensor  # int32 [experts]: how many windows asked for each, counted up
    totals: torch.Tensor  # int32 [3]: distinct experts from seats, in place and on the CPU, counted up


@dataclass(frozen=True)
class PlanState:
    """What all layers of a window share, and all windows that use one mailbox; on the computing device."""

    number: torch.Tensor  # int32 [1]: the last number that the door was rung with
    arrivals: torch.Tensor  # int32 [1]: what the programs of a launch count in; 0 between launches
    seen: torch.Tensor  # int32 [1]: the last number whose answer the programs of a collecting know to be there
    times: torch.Tensor  # int64 [2], ns counted up: from a ring to the start of its collecting, and spent waiting there

    @classmethod
    def create(cls, device: torch.device | str, times: torch.Tensor | None = None) -> "PlanState":
        """Before the first window. times: where they are counted up, if not in new memory."""

        def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        number, arrivals, seen = (zeros(1, torch.int32) for _ in range(3))
        return cls(number, arrivals, seen, zeros(2, torch.int64) if times is None else times)


@dataclass(frozen=True)
class PlannedWork:
    """The plan of one layer's places: filled by `plan_experts`, read by the experts' kernels and `collect_rows`.

    work: what the GPU computes, in-place experts first, then those in seats; `work.seats[e]` is e, and entry e's blob
    lies at `addresses[e]`. The places of the CPU stand behind, in no entry, and in `cpu_places[:cpu_count]`.
    """

    work: ExpertWork
    addresses: torch.Tensor  # int64 [places]
    cpu_places: torch.Tensor  # int32 [places]
    cpu_count: torch.Tensor  # int32 [1]

    @classmethod
    def empty(cls, rows: int, ranks: int, device: torch.device | str) -> "PlannedWork":
        """Room for a bucket of rows; nothing is planned yet."""
        work, places = ExpertWork.empty(rows, ranks, device), rows * ranks
        work.seats.copy_(torch.arange(places, dtype=torch.int32))

        def zeros(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        return cls(work, zeros(places, torch.int64), zeros(places), zeros(1))
