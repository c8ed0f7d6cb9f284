"""What the PC is doing, for the monitor: processor, main memory, the engine's own share, graphics cards.

Measures through psutil, and through NVIDIA's library where it is installed; decides nothing.
"""

import contextlib
from typing import Any

import psutil

from strata.hardware import read_memory


class MachineMeter:
    """Reads the PC's state. The processor's share is that since the call before; the first call gives 0."""

    def __init__(self) -> None:
        self._cards = _open_cards()
        psutil.cpu_percent()

    def read(self, engine_pid: int | None) -> dict[str, Any]:
        """Shares in percent, memory in bytes; a container's limit counts as the PC's memory."""
        memory = read_memory()
        total = memory.total if memory.limit is None else memory.limit
        return {
            "cpu_percent": psutil.cpu_percent(),
            "ram_used": max(0, total - memory.usable),
            "ram_total": total,
            "engine": _resident_bytes(engine_pid),
            "gpus": [_read_card(*card) for card in self._cards],
        }


def _resident_bytes(pid: int | None) -> int:
    """Main memory of a process; 0 if there is none, or it ended just now."""
    with contextlib.suppress(psutil.Error):
        if pid is not None:
            return psutil.Process(pid).memory_info().rss
    return 0


def _open_cards() -> list[tuple[Any, Any]]:
    """(library, handle) of every card; empty without NVIDIA's library or its driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _read_card(library: Any, handle: Any) -> dict[str, Any]:
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    return {
        "name": library.nvmlDeviceGetName(handle),
        "busy_percent": library.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_used": memory.used,
        "memory_total": memory.total,
    }
