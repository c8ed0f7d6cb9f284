"""This PC's facts are read from the system's files: made-up ones give made-up PCs."""

from pathlib import Path

import pytest
import torch

from strata.hardware import (
    NumaNode,
    disk_free_bytes,
    read_cpu,
    read_gpu_driver,
    read_gpus,
    read_hardware,
    read_memory,
    read_numa_nodes,
    why_no_gpu,
)

CORE = """processor\t: {0}
vendor_id\t: GenuineIntel
model name\t: Made-up CPU @ 3.00GHz
physical id\t: {1}
core id\t\t: {2}
flags\t\t: fpu sse2 avx2 avx_vnni avx512f avx512_vnni

"""
MEMINFO = "MemTotal:       65536000 kB\nMemFree:         1000 kB\nMemAvailable:   60000000 kB\n"
KB = 1024


def make(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "proc", root / "sys"


def test_the_processor_with_its_cores_and_threads(tmp_path: Path) -> None:
    text = "".join(CORE.format(i, i // 8, i % 4) for i in range(16))  # two sockets, four cores of two threads each
    cpu = read_cpu(make(tmp_path, {"proc/cpuinfo": text})[0])
    assert cpu.model == "Made-up CPU @ 3.00GHz"
    assert (cpu.physical_cores, cpu.logical_cores) == (8, 16)
    assert cpu.usable_cores >= 1
    assert cpu.instruction_sets == ("avx2", "avx_vnni", "avx512f", "avx512_vnni")


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "60000 100000\n"},
        {
            "proc/self/cgroup": "0::/box\n",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/box/cpu.max": "max 1\n",
        },
        {
            "proc/self/cgroup": "3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_a_container_may_use_fewer_cores_than_there_are(tmp_path: Path, files: dict[str, str]) -> None:
    text = "".join(CORE.format(i, 0, i) for i in range(64))
    assert read_cpu(*make(tmp_path, {"proc/cpuinfo": text, **files})).usable_cores == 1


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path)
    assert cpu.model == "unknown"
    assert cpu.logical_cores >= 1
    memory = read_memory(tmp_path, tmp_path)
    assert (memory.total, memory.available, memory.limit) == (0, 0, None)


def test_memory_without_a_limit(tmp_path: Path) -> None:
    memory = read_memory(*make(tmp_path, {"proc/self/cgroup": "0::/user.slice/a\n"}))
    assert (memory.total, memory.usable, memory.limit) == (65536000 * KB, 60000000 * KB, None)


def group_v2(path: str, limit: str, used: int, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


def test_the_tightest_group_of_version_2_wins_and_file_cache_counts_as_free(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/slice/box\n",
        **group_v2("/slice", str(8 << 30), 3 << 30, 1 << 30),
        **group_v2("/slice/box", "max", 1 << 30),
    }
    memory = read_memory(*make(tmp_path, files))
    assert (memory.limit, memory.limit_available) == (8 << 30, 6 << 30)
    assert memory.usable == 6 << 30


def test_in_a_container_the_root_holds_the_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../host/only\n", **group_v2("", str(4 << 30), 1 << 30)}
    memory = read_memory(*make(tmp_path, files))
    assert (memory.limit, memory.usable) == (4 << 30, 3 << 30)


def test_a_group_of_version_1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "11:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
        f"{folder}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{folder}/memory.usage_in_bytes": "1\n",
        f"{folder}/docker/abc/memory.limit_in_bytes": str(2 << 30),
        f"{folder}/docker/abc/memory.usage_in_bytes": str(1 << 30),
        f"{folder}/docker/abc/memory.stat": "total_inactive_file 1048576\n",
    }
    memory = read_memory(*make(tmp_path, files))
    assert memory.limit == 2 << 30
    assert memory.usable == (1 << 30) + (1 << 20)


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", **group_v2("", str(1 << 30), 2 << 30)}
    assert read_memory(*make(tmp_path, files)).usable == 0


def test_this_pc_has_a_processor_memory_and_a_disk(tmp_path: Path) -> None:
    hardware = read_hardware()
    assert hardware.cpu.logical_cores >= hardware.cpu.physical_cores >= 1
    assert hardware.memory.total >= hardware.memory.usable > 0
    assert disk_free_bytes(tmp_path / "not" / "there" / "yet") > 0


def pretend_cards(monkeypatch: pytest.MonkeyPatch, count: int, **more: int) -> None:
    facts = {"name": "Made-up card", "major": 8, "minor": 9, "total_memory": 24, **more}
    properties = type("Properties", (), facts)()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (10, 24 + index))


def test_cards_are_those_that_torch_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cards(monkeypatch, 2)
    gpus = read_hardware().gpus
    assert [(gpu.name, gpu.total_bytes, gpu.free_bytes, gpu.compute_capability) for gpu in gpus] == [
        ("Made-up card", 24, 10, (8, 9)),
        ("Made-up card", 25, 10, (8, 9)),
    ]


def test_the_link_to_a_card_is_read_from_its_place_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cards(monkeypatch, 1, pci_domain_id=0, pci_bus_id=0x17, pci_device_id=2)
    folder = "sys/bus/pci/devices/0000:17:02.0"
    _, sys = make(tmp_path, {f"{folder}/max_link_speed": "32.0 GT/s PCIe\n", f"{folder}/current_link_width": "16\n"})
    assert [(gpu.pcie_generation, gpu.pcie_width) for gpu in read_gpus(sys)] == [(5, 16)]
    assert [(gpu.pcie_generation, gpu.pcie_width) for gpu in read_gpus(tmp_path)] == [(None, None)]


@pytest.mark.parametrize("words, is_full", [("CUDA error: out of memory", True), ("CUDA error: unknown error", False)])
def test_a_card_that_others_have_filled_has_nothing_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, is_full: bool
) -> None:
    def refuse(index: int) -> tuple[int, int]:
        raise RuntimeError(words)

    pretend_cards(monkeypatch, 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    if is_full:
        assert [(gpu.free_bytes, gpu.total_bytes) for gpu in read_gpus(tmp_path)] == [(0, 24)]
    else:
        with pytest.raises(RuntimeError, match="unknown error"):
            read_gpus(tmp_path)


def test_nodes_of_main_memory_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    nodes = {f"sys/devices/system/node/node{n}/meminfo": f"Node {n} MemTotal:  {n + 1} kB\n" for n in (10, 0, 2)}
    lists = {f"sys/devices/system/node/node{n}/cpulist": f"{n}-{n + 1}\n" for n in (10, 0, 2)}
    _, sys = make(tmp_path, {**nodes, **lists})
    assert read_numa_nodes(sys) == (NumaNode(0, "0-1", KB), NumaNode(2, "2-3", 3 * KB), NumaNode(10, "10-11", 11 * KB))
    assert read_numa_nodes(tmp_path) == ()


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@x)",
    ],
)
def test_the_version_of_the_cards_driver(tmp_path: Path, line: str) -> None:
    proc, _ = make(tmp_path, {"proc/driver/nvidia/version": line + "\nGCC version: gcc 12.2.0\n"})
    assert read_gpu_driver(proc) == "580.95.05"
    assert read_gpu_driver(tmp_path) is None


def test_torchs_reason_for_seeing_no_card_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
            "downloading\nand installing a new version."
        )

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sentence = "torch says: The NVIDIA driver on your system is too old (found version 11040)"
    assert why_no_gpu() == sentence
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why_no_gpu() == f"{sentence} (CUDA_VISIBLE_DEVICES is '')"
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert why_no_gpu() is None


def test_a_torch_without_cuda_is_named_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert why_no_gpu() == f"torch {torch.__version__} was built without CUDA, install a build that has it"
