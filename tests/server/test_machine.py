"""The monitor's figures of the PC are of this PC, and a process that is gone counts nothing."""

import os
import subprocess
import sys
import time

from strata.server.machine import MachineMeter


def test_memory_and_processor_are_within_what_the_pc_has() -> None:
    machine = MachineMeter().read(os.getpid())
    assert 0 < machine["ram_used"] <= machine["ram_total"]
    assert 1 << 20 < machine["engine"] < machine["ram_total"]
    assert 0 <= machine["cpu_percent"] <= 100


def test_a_busy_processor_shows() -> None:
    meter = MachineMeter()
    meter.read(None)
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        sum(range(1000))
    assert meter.read(None)["cpu_percent"] > 0


def test_a_process_that_has_ended_counts_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert MachineMeter().read(child.pid)["engine"] == 0
    assert MachineMeter().read(None)["engine"] == 0
