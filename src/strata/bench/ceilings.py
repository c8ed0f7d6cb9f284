"""What this PC's memories give: RAM by number of threads, memory that can be pinned, the link to a card, its VRAM.

Knows how much is read and when there is no more time; what the numbers mean for a model is decided elsewhere.
"""

import contextlib
import mmap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch

from strata.hardware import read_memory
from strata.native import library
from strata.native.memory import read_seconds
from strata.native.pool import Pool
from strata.types import ProgressCallback

READ_BYTES = 1 << 30  # of RAM: far beyond any cache
READ_ROUNDS = 5
GROWTH = 1.05  # more threads are worth it while the best speed so far is beaten by this factor
PINNED_BYTES = 256 << 20  # of a copy to the card
PIN_STEP_BYTES = 512 << 20
MOST_PIN_BYTES = 8 << 30
PIN_SECONDS = 4.0
CARD_BYTES = 2 << 30  # copied inside the card, at most an eighth of what is free
CARD_BLOCKS = (2048, 8192)  # words a program of the copying kernel: the best of two
STAGE = "measuring"


@dataclass(frozen=True)
class PinProbe:
    """How much memory was pinned at once, and whether the system refused more or the check was over."""

    size: int
    seconds: float
    was_refused: bool


@dataclass(frozen=True)
class CardRates:
    """Gigabytes (10^9) a second of one card."""

    copy_to_card: float  # from pinned memory, by the copy engine
    read_in_place: float  # of pinned memory, by a kernel
    vram_copy: float  # bytes read plus bytes written
    vram_read: float


@dataclass
class Ceilings:
    """What was measured; a part that was not is None or empty, and `skipped` says what there was no time for."""

    ram_gb_per_s: dict[int, float] = field(default_factory=dict)  # by number of threads
    pinned: PinProbe | None = None
    card: CardRates | None = None
    skipped: list[str] = field(default_factory=list)

    @property
    def threads_worth_using(self) -> int | None:
        """See the function of this name."""
        return threads_worth_using(self.ram_gb_per_s)


def threads_worth_using(gb_per_s: Mapping[int, float]) -> int | None:
    """The number of threads behind which reading gets no faster; None if nothing was measured."""
    best: tuple[int, float] | None = None
    for threads, rate in sorted(gb_per_s.items()):
        if best is None or rate > GROWTH * best[1]:
            best = threads, rate
    return None if best is None else best[0]


def measure_ceilings(
    threads: Sequence[int],
    has_card: bool,
    limit_s: float,
    on_progress: ProgressCallback | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Ceilings:
    """Everything that there is time for, in order. What was begun is finished: seconds beyond the limit at most."""
    found = Ceilings()
    steps: list[tuple[str, Callable[[], None]]] = []
    if library.is_available():
        memory = anonymous_memory(min(READ_BYTES, _usable_bytes() // 8))
        for count in threads:
            steps.append((f"RAM with {count} threads", partial(_measure_ram, found, memory, count)))
    if has_card:
        steps.append(("the card", partial(_measure_card, found)))
        steps.append(("pinned memory", partial(_measure_pinning, found)))
    begin = now()
    for done, (name, measure) in enumerate(steps):
        if on_progress is not None:
            on_progress(f"{STAGE} {name}", done, len(steps))
        if now() - begin > limit_s:
            found.skipped.append(name)
        else:
            measure()
    if on_progress is not None:
        on_progress(STAGE, len(steps), len(steps))
    return found


def anonymous_memory(size: int) -> torch.Tensor:
    """uint8 [size, a multiple of a page], written once; in huge pages where the system gives them."""
    memory = mmap.mmap(-1, max(1, size >> 12) << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages: slower, not wrong
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).fill_(1)


def _measure_ram(found: Ceilings, memory: torch.Tensor, threads: int) -> None:
    with Pool(threads) as pool, pool.held_awake():
        taken = [read_seconds(pool, memory) for _ in range(READ_ROUNDS)]
    found.ram_gb_per_s[threads] = memory.numel() / median(taken) / 1e9


def _measure_card(found: Ceilings) -> None:
    from strata.bench.device_timing import device_rates_gb_per_s, host_rates_gb_per_s  # needs Triton

    copied, in_place = host_rates_gb_per_s(torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True))
    size = min(CARD_BYTES, torch.cuda.mem_get_info()[0] // 8) >> 20 << 20
    vram_copied, vram_read = device_rates_gb_per_s(size, CARD_BLOCKS)
    found.card = CardRates(copied, in_place, vram_copied, vram_read)
    torch.cuda.empty_cache()


def _measure_pinning(found: Ceilings) -> None:
    """Pin more and more until the system refuses, time is over or half of what is free is pinned; then let go."""
    most = min(MOST_PIN_BYTES, _usable_bytes() // 2)
    with _pinned_parts() as pin:
        size, begin, was_refused = 0, time.monotonic(), False
        while size + PIN_STEP_BYTES <= most and time.monotonic() - begin < PIN_SECONDS and not was_refused:
            was_refused = not pin(PIN_STEP_BYTES)
            size += 0 if was_refused else PIN_STEP_BYTES
        found.pinned = PinProbe(size, time.monotonic() - begin, was_refused)
    if was_refused:  # CUDA reports a refusal once more, to whoever asks next
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()


@contextlib.contextmanager
def _pinned_parts() -> Iterator[Callable[[int], bool]]:
    """Gives a function that pins so many bytes more and says whether it could."""
    parts: list[torch.Tensor] = []
    runtime = torch.cuda.cudart()

    def pin(size: int) -> bool:
        memory = anonymous_memory(size)
        if int(runtime.cudaHostRegister(memory.data_ptr(), size, 0)) != 0:
            return False
        parts.append(memory)
        return True

    try:
        yield pin
    finally:
        for memory in parts:
            runtime.cudaHostUnregister(memory.data_ptr())


def _usable_bytes() -> int:
    """Bytes of main memory that can be had; a GiB where the system tells nothing."""
    memory = read_memory()
    return memory.usable if memory.total else 1 << 30
