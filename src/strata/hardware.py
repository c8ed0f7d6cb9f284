"""Facts of this PC: processor, memory and its limits, graphics cards, free disk.

Reads the system's own files and asks torch for the cards; decides nothing. Every reader takes the roots of /proc and
/sys, so that a test can show it another PC.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.settings import named_cards

PROC = Path("/proc")
SYS = Path("/sys")

# What the C++ library has a path for, by the names of /proc/cpuinfo.
INSTRUCTION_SETS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
_PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # by GT/s, as /sys writes them


@dataclass(frozen=True)
class CpuFacts:
    """The processor. Counts are of the whole PC; `usable_cores` is what this process may use."""

    model: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    instruction_sets: tuple[str, ...]  # those of INSTRUCTION_SETS that it has


@dataclass(frozen=True)
class MemoryFacts:
    """Main memory in bytes. `limit` is the tightest limit of this process's control groups, None if there is none."""

    total: int
    available: int  # the system's own estimate of what can be had without swapping
    limit: int | None = None
    limit_available: int | None = None  # of the limit, what is not in use (file cache counts as free)

    @property
    def usable(self) -> int:
        """Bytes that this process can still get."""
        return self.available if self.limit_available is None else min(self.available, self.limit_available)


@dataclass(frozen=True)
class GpuFacts:
    """One graphics card."""

    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    pcie_generation: int | None = None  # that the card can do (an idle link is slower); None where nothing tells
    pcie_width: int | None = None  # lanes that it has here


@dataclass(frozen=True)
class NumaNode:
    """A part of main memory and the processors that are near it."""

    number: int
    processors: str  # as the system writes them: 0-7,16-23
    memory_bytes: int


@dataclass(frozen=True)
class Hardware:
    """This PC."""

    cpu: CpuFacts
    memory: MemoryFacts
    gpus: tuple[GpuFacts, ...]


def read_hardware(proc: Path = PROC, sys: Path = SYS) -> Hardware:
    """Everything at once. What the system does not tell is 0, empty or None."""
    return Hardware(read_cpu(proc, sys), read_memory(proc, sys), read_gpus(sys))


def read_cpu(proc: Path = PROC, sys: Path = SYS) -> CpuFacts:
    """The processor from /proc/cpuinfo; what this process may use of it from its affinity and its control groups."""
    model, flags = "unknown", frozenset[str]()
    physical: set[tuple[str, str]] = set()
    logical = 0
    for paragraph in _read_text(proc / "cpuinfo").split("\n\n"):
        entries: dict[str, str] = dict(re.findall(r"^([^:\n]+?)[ \t]*:[ \t]*(.*)$", paragraph, flags=re.MULTILINE))
        if "processor" not in entries:
            continue
        logical += 1
        model = entries.get("model name", model)
        flags = frozenset(entries.get("flags", "").split()) or flags
        physical.add((entries.get("physical id", "0"), entries.get("core id", entries["processor"])))
    logical = logical or os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return CpuFacts(
        model=model,
        physical_cores=len(physical) or logical,
        logical_cores=logical,
        usable_cores=min([usable, *_cpu_quotas(proc, sys)]),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
    )


def read_memory(proc: Path = PROC, sys: Path = SYS) -> MemoryFacts:
    """Main memory from /proc/meminfo, the limit from the control groups (version 1 or 2) that hold this process."""
    kilobytes = {
        name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", _read_text(proc / "meminfo"), re.M)
    }
    total = kilobytes.get("MemTotal", 0) * 1024
    available = kilobytes.get("MemAvailable", kilobytes.get("MemFree", 0)) * 1024
    tightest: tuple[int, int] | None = None
    for limit, used in _memory_groups(proc, sys):
        if limit < total and (tightest is None or limit - used < tightest[0] - tightest[1]):
            tightest = (limit, used)
    if tightest is None:
        return MemoryFacts(total, available)
    return MemoryFacts(total, available, tightest[0], max(0, tightest[0] - tightest[1]))


def read_gpus(sys: Path = SYS) -> tuple[GpuFacts, ...]:
    """Every card that torch can use; empty without one."""
    import torch  # only here: the facts above are wanted where torch is not loaded

    if not torch.cuda.is_available():
        return ()
    cards = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = _card_memory(index, properties.total_memory)
        link = _read_link(sys, properties)
        cards.append(GpuFacts(properties.name, total, free, (properties.major, properties.minor), *link))
    return tuple(cards)


def _card_memory(index: int, total: int) -> tuple[int, int]:
    """Free and total bytes of a card: nothing is free where not even the driver finds the memory to look."""
    import torch

    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as failure:
        if "out of memory" not in str(failure):
            raise
        return 0, total
    return free, total


def why_no_gpu() -> str | None:
    """Why torch sees no card, one sentence: built without CUDA, no driver, one that is too old; None if it sees one."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA, install a build that has it"
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as reason:
        shown = named_cards()
        hidden = "" if shown is None else f" (CUDA_VISIBLE_DEVICES is {shown!r})"
        return f"torch says: {' '.join(str(reason).split()).split('. ')[0]}{hidden}"
    return None


def read_numa_nodes(sys: Path = SYS) -> tuple[NumaNode, ...]:
    """The nodes of main memory; empty where the system does not tell."""
    nodes = []
    for folder in sys.glob("devices/system/node/node[0-9]*"):
        kilobytes = re.search(r"MemTotal:\s+(\d+) kB", _read_text(folder / "meminfo"))
        size = int(kilobytes[1]) * 1024 if kilobytes else 0
        nodes.append(NumaNode(int(folder.name.removeprefix("node")), _read_text(folder / "cpulist").strip(), size))
    return tuple(sorted(nodes, key=lambda node: node.number))


def read_gpu_driver(proc: Path = PROC) -> str | None:
    """The version of NVIDIA's driver, None without one."""
    found = re.search(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", _read_text(proc / "driver/nvidia/version"))
    return found[1] if found else None


def disk_free_bytes(path: Path) -> int:
    """Bytes that this user may still write where `path` is or would be. Raises OSError if no parent can be read."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _read_link(sys: Path, properties: Any) -> tuple[int | None, int | None]:
    """Generation and width of the PCIe link to a card of torch's `properties`."""
    try:
        domain, bus, device = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    except AttributeError:  # not told by every version of torch
        return None, None
    folder = sys / "bus/pci/devices" / f"{domain:04x}:{bus:02x}:{device:02x}.0"
    speed = _read_text(folder / "max_link_speed").partition(" ")[0]
    return _PCIE_GENERATIONS.get(speed), _read_integer(folder / "current_link_width")


def _memory_groups(proc: Path, sys: Path) -> list[tuple[int, int]]:
    """(limit, used) in bytes of every control group with a limit that holds this process, parents included."""
    names_by_version = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    groups = (_read_group(folder, *names_by_version[version]) for version, folder in _groups(proc, sys, "memory"))
    return [group for group in groups if group is not None]


def _cpu_quotas(proc: Path, sys: Path) -> list[int]:
    """Whole cores of processor time that each control group of this process allows, rounded up."""
    quotas = []
    for version, folder in _groups(proc, sys, "cpu"):
        if version == 2:
            quota, period = [*_read_text(folder / "cpu.max").split(), "", ""][:2]
        else:
            quota, period = (_read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(max(1, -(-int(quota) // int(period))))
    return quotas


def _groups(proc: Path, sys: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the control groups that hold this process for a controller, innermost first."""
    for line in _read_text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            version, root = 2, sys / "fs/cgroup"
        elif controller in controllers.split(","):
            version, root = 1, sys / "fs/cgroup" / controller
        else:
            continue
        inside = Path(path.lstrip("/"))
        # In a container the path may name a group that only the host sees; the root is then the container's own.
        for folder in (inside, *inside.parents):
            yield version, root / folder


def _read_group(folder: Path, limit_name: str, used_name: str, cache_name: str) -> tuple[int, int] | None:
    limit = _read_integer(folder / limit_name)
    used = _read_integer(folder / used_name)
    if limit is None or used is None:
        return None
    cache = re.search(rf"^{cache_name} (\d+)$", _read_text(folder / "memory.stat"), re.M)
    return limit, max(0, used - (int(cache[1]) if cache else 0))


def _read_integer(file: Path) -> int | None:
    """The whole number in a file; None if there is no such file or it holds a word (`max`)."""
    with contextlib.suppress(ValueError):
        return int(_read_text(file))
    return None


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError:
        return ""
