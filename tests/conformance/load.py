"""Many clients on few slots of a real engine, some of which leave: no slot is lost, no memory, no reply.

Knows `strata serve` as a process and the load of `strata bench serve`.
"""

import statistics
import threading
import time

from strata.bench.serve import LoadPlan, LoadReport, run_load
from tests.conformance.table import Row
from tests.server.serving import Serving, serving

CLIENTS = 200
SLOTS = 8
LEAVE_SHARE = 0.3
MOST_GROWTH_BYTES = 4 << 20  # of the server's process, between the second and the last quarter of the time


class MemoryWatch(threading.Thread):
    """Looks at the server's memory twice a second."""

    def __init__(self, server: Serving) -> None:
        super().__init__(daemon=True)
        self.sizes: list[int] = []
        self._server = server
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.5):
            self.sizes.append(self._server.rss_bytes())

    def growth(self) -> int:
        """Bytes between the middle of the second quarter and of the last."""
        self._over.set()
        self.join()
        quarter = max(1, len(self.sizes) // 4)
        return int(statistics.median(self.sizes[-quarter:]) - statistics.median(self.sizes[quarter : 2 * quarter]))


def load(seconds: float, clients: int = CLIENTS) -> Row:
    """Rounds of load for at least so long."""
    with serving("--slots", str(SLOTS), "--context", "512") as server:
        server.until_ready()
        watch = MemoryWatch(server)
        began = time.monotonic()
        reports: list[LoadReport] = []
        while time.monotonic() - began < seconds:
            plan = LoadPlan(
                server.url, clients=clients, requests=clients, prompt_words=12, reply_tokens=12,
                leave_share=LEAVE_SHARE, seed=len(reports),
            )  # fmt: skip
            reports.append(run_load(plan))
        server.until(lambda: server.ask("GET", "/strata/status")[1]["running"] == 0, seconds=30)
        server.until(lambda: not any(slot["is_processing"] for slot in server.ask("GET", "/slots")[1]), seconds=30)
        growth = watch.growth()
        works = server.ask("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 4})[0] == 200
    complete, left = sum(r.completed for r in reports), sum(r.left for r in reports)
    bad = sum(r.refused + r.failed for r in reports)
    gap = max(report.itl["max"] for report in reports)
    result = (
        f"{complete} complete, {left} left early, {bad} without an end, every slot free again; memory of the server "
        f"{growth / 2**20:+.1f} MiB; longest gap {gap:.0f} ms"
    )
    is_kept = bad == 0 and growth <= MOST_GROWTH_BYTES and works
    return Row(
        f"{clients} clients, {SLOTS} slots, {LEAVE_SHARE:.0%} leave early, {time.monotonic() - began:.0f} s",
        "no slot lost, memory flat, every reply complete or ended with a reason",
        result,
        is_kept,
    )
