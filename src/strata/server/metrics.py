"""Numbers for Prometheus: vLLM's names, so that its dashboards work, and our own beside them.

Knows the service's counters and the usage of replies; no label holds anything of a request but why it ended.
"""

import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from strata.server.condition import Phase
from strata.server.service import EngineService
from strata.types import Usage

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 60)


class Metrics:
    """One registry for one server."""

    def __init__(self, service: EngineService) -> None:
        self.registry = CollectorRegistry()
        self._first = self._histogram("time_to_first_token_seconds", "From acceptance to the first token.")
        self._gap = self._histogram("inter_token_latency_seconds", "Between two windows of a reply, per token.", _GAPS)
        self._whole = self._histogram("e2e_request_latency_seconds", "From acceptance to the last token.")
        self._queue = self._histogram("request_queue_time_seconds", "Waiting for a slot.")
        self._read = self._histogram("request_prefill_time_seconds", "Reading the prompt.")
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts of finished replies.")
        self._generated = self._counter("generation_tokens", "Tokens of finished replies.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens that kept conversations were asked for.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens that kept conversations had.")
        self._success = Counter(
            "vllm:request_success", "Finished replies.", ["finished_reason"], registry=self.registry
        )
        self.registry.register(_EngineCollector(service))

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def first_token(self, seconds: float) -> None:
        """The first token of a reply came so long after its request."""
        self._first.observe(seconds)

    def gap(self, seconds: float, tokens: int) -> None:
        """Between two windows of a reply, of which the second brought so many tokens."""
        self._gap.observe(seconds / max(1, tokens))

    def finished(self, usage: Usage, reason: str, seconds: float) -> None:
        """A reply is complete."""
        self._whole.observe(seconds)
        self._queue.observe(usage.waiting_seconds)
        self._read.observe(usage.read_seconds)
        self._decode.observe(usage.decode_seconds)
        self._prompt.inc(usage.prompt_tokens)
        self._generated.inc(usage.completion_tokens)
        self._queries.inc(usage.prompt_tokens)
        self._hits.inc(usage.cached_tokens)
        self._success.labels(reason).inc()

    def _histogram(self, name: str, help_line: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(f"vllm:{name}", help_line, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, help_line: str) -> Counter:
        return Counter(f"vllm:{name}", help_line, registry=self.registry)


class ReplyClock:
    """The times of one reply as metrics take them: told of every window, then of the end."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started = self._last = time.perf_counter()
        self._has_tokens = False

    def window(self, tokens: int) -> None:
        """Tokens came."""
        now = time.perf_counter()
        if self._has_tokens:
            self._metrics.gap(now - self._last, tokens)
        else:
            self._metrics.first_token(now - self._started)
        self._last, self._has_tokens = now, True

    def finished(self, usage: Usage, reason: str) -> None:
        """The reply is complete."""
        self._metrics.finished(usage, reason, time.perf_counter() - self._started)


_EXPERT_ROWS = ("strata_expert_rows", "Rows of experts by where they ran, of a model whose experts run in one place.")
_WINDOW_EXPERTS = (
    "strata_window_experts",
    "Different experts of each layer of each window by where they ran, of a model with experts in tiers.",
)

_OF_PROMPTS = "prompt_"  # the beginning of such a place
_PROMPT_EXPERTS = (
    "strata_prompt_experts",
    "Experts of each layer of each chunk of a prompt, with experts in tiers: with a seat (vram), or sent (pcie).",
)

_EXPERTS_READ = {
    "experts": ("strata_read_experts", "Experts that were read from the model's files for a window or a prompt."),
    "bytes": ("strata_read_expert_bytes", "Their bytes in the files."),
    "ns": ("strata_read_expert_seconds", "Time in which windows and prompts waited for them."),
}

_PAGES = {
    "asked": ("strata_kv_blocks_asked", "Blocks of keys and values in main memory that rows of windows read."),
    "brought": ("strata_kv_blocks_brought", "Those of them that the card did not have and copied."),
}

_PARKED = {
    "parked": ("strata_parked", "Conversations that moved to main memory because others got their slots."),
    "dropped": ("strata_parked_dropped", "Those of them that were given up for want of room."),
    "returned": ("strata_parked_hits", "Prompts that went on with a conversation from there."),
    "rows": ("strata_parked_tokens", "Prompt tokens that were not read because of that."),
}

_CHECKPOINTS = {
    "dropped": ("strata_checkpoints_dropped", "Checkpoints that were given up for want of room."),
    "hits": ("strata_checkpoint_hits", "Prompts that went on from a checkpoint."),
    "rows": ("strata_checkpoint_tokens", "Prompt tokens that were not read because of that."),
}


class _EngineCollector(Collector):
    """What the engine's last statistics say, read when Prometheus asks."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        service = self._service
        yield _gauge("strata_ready", "1 if requests are served.", float(service.condition.is_ready))
        yield _gauge("strata_failed", "1 if the engine was given up.", float(service.condition.phase is Phase.FAILED))
        yield _counter("strata_engine_restarts", "Engine processes started in place of lost ones.", service.restarts)
        facts, now = service.facts, service.statistics
        waiting = now.waiting if now is not None else 0
        yield _gauge("vllm:num_requests_waiting", "Requests without a slot.", min(waiting, service.running))
        yield _gauge("vllm:num_requests_running", "Requests in a slot.", max(0, service.running - waiting))
        if now is None or facts is None:
            return
        held = sum(slot.kept_tokens + slot.read_tokens + slot.reply_tokens for slot in now.slots)
        room = facts.context * max(1, facts.slots)
        yield _gauge("vllm:kv_cache_usage_perc", "Share of all slots' context that holds tokens.", min(1, held / room))
        yield _counter("strata_busy_seconds", "Time in which the engine worked.", now.busy_seconds)
        yield _counter("strata_read_tokens", "Prompt tokens read.", now.prompt_tokens)
        yield _counter("strata_cached_tokens", "Prompt tokens that a slot had.", now.cached_tokens)
        yield _counter("strata_read_runs", "Parts of prompts read with no window in between.", now.read_runs)
        yield _counter("strata_give_ways", "Times that a prompt's read let a shorter one pass.", now.give_ways)
        yield _counter("strata_reply_tokens", "Tokens decoded.", now.reply_tokens)
        yield _counter("strata_windows", "Decode windows.", now.windows)
        yield _counter("strata_drafted_tokens", "Tokens drafted.", now.drafted_tokens)
        yield _counter("strata_accepted_drafts", "Drafts accepted.", now.accepted_drafts)
        name, what = _EXPERT_ROWS if now.experts_are_rows else _WINDOW_EXPERTS
        of_prompts = {place: count for place, count in now.experts.items() if place.startswith(_OF_PROMPTS)}
        yield _by_place(name, what, {place: count for place, count in now.experts.items() if place not in of_prompts})
        if of_prompts:
            own = {place.removeprefix(_OF_PROMPTS): count for place, count in of_prompts.items()}
            yield _by_place(*_PROMPT_EXPERTS, own)
        for unit, (name, what) in _EXPERTS_READ.items() if now.experts_read else ():
            yield _counter(name, what, now.experts_read[unit] / (1e9 if unit == "ns" else 1))
        for kind, (name, what) in _PAGES.items() if now.pages else ():
            yield _counter(name, what, now.pages[kind])
        if now.parked:
            yield _gauge("strata_parked_conversations", "Conversations in main memory.", now.parked["kept"])
            yield _gauge("strata_parked_room_bytes", "Main memory that they may take.", now.parked["room"])
        for kind, (name, what) in _PARKED.items() if now.parked else ():
            yield _counter(name, what, now.parked[kind])
        yield _gauge("strata_checkpoints", "Checkpoints that are kept.", now.checkpoints.get("kept", 0))
        for kind, (name, what) in _CHECKPOINTS.items():
            yield _counter(name, what, now.checkpoints.get(kind, 0))
        memory = GaugeMetricFamily("strata_memory_bytes", "Memory by use.", labels=["use"])
        for use, taken in now.memory.items():
            memory.add_metric([use], taken)
        yield memory


def _gauge(name: str, help_line: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_line, value=value)


def _counter(name: str, help_line: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_line, value=value)


def _by_place(name: str, help_line: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_line, labels=["place"])
    for place, count in counts.items():
        family.add_metric([place], count)
    return family
