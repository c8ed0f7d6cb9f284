"""The engine's process killed under load, again and again: the server says so within a second and goes on.

Knows `strata serve` as a process.
"""

import time

from tests.conformance.table import Row
from tests.server.serving import serving
from tests.server.test_serve import CHAT, ENDLESS, Streaming

MOST_SECONDS = 1.0


def kills(count: int) -> Row:
    """Kill so many times."""
    slowest = longest_return = 0.0
    hanging = without_reason = 0
    answered = 0
    with serving("--slots", "2", "--context", "1024") as server:
        server.until_ready()
        for _ in range(count):
            streams = [Streaming(server, ENDLESS) for _ in range(3)]
            server.until(lambda held=streams: sum(stream.has_begun.is_set() for stream in held) >= 2, seconds=60)
            killed = time.monotonic()
            server.kill_engine()
            server.until(lambda: server.ask("GET", "/health", timeout=2)[0] == 503, seconds=20)
            slowest = max(slowest, time.monotonic() - killed)
            for stream in streams:
                stream.join(5)
                hanging += stream.is_alive()
                without_reason += "signal 9" not in stream.received and "[DONE]" not in stream.received
            server.until_ready()
            longest_return = max(longest_return, time.monotonic() - killed)
            answered += server.ask("POST", "/v1/chat/completions", CHAT)[0] == 200
    result = (
        f"said so after {slowest:.2f} s at most, ready again after {longest_return:.1f} s at most, {answered} next "
        f"requests work, {hanging} streams hang, {without_reason} without a reason"
    )
    is_kept = slowest <= MOST_SECONDS and answered == count and hanging == without_reason == 0
    return Row(f"engine killed {count} times under load", "said within 1 s, the next request works", result, is_kept)
