"""The doorbell service answers windows in plain memory with the reference's bits, and nobody waits after a stop."""

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from strata.errors import EngineError
from strata.experts.doorbell import DoorbellService, LayerExperts, as_struct
from strata.experts.pool import ExpertPool, group_by_expert
from strata.kernels.expert_plan.tables import OPEN, RAISED, Mailbox
from strata.native import abi, library
from strata.native.matrices import quantize
from strata.native.pool import Pool
from tests.experts.busy_pool import stick
from tests.experts.test_pool import BY_NAME, aligned_blobs, blob_layout, same_bits
from tests.kernels.random_matrices import random_choices, random_experts, random_rows

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

HIDDEN, WIDTH, EXPERTS, RANKS, ROWS, LAYERS = 256, 256, 6, 3, 4, 5
PATIENCE_S = 20.0


class Played:
    """What a GPU does with one mailbox: writes a request, rings, waits for the flag."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.door = ctypes.c_uint32.from_address(mailbox.door.data_ptr())
        self.done = ctypes.c_uint32.from_address(mailbox.done.data_ptr())
        self.gate = None if mailbox.gate is None else ctypes.c_uint32.from_address(mailbox.gate.data_ptr())

    def ask(self, layer: int, choices: torch.Tensor, x: torch.Tensor) -> None:
        rows, ranks = choices.shape
        box = self.mailbox
        if self.gate is not None:
            self.gate.value = 0
            if self.done.value == RAISED:
                self.gate.value = OPEN
        entries = torch.stack((choices.reshape(-1), torch.arange(rows * ranks)), dim=1)
        box.entries[: rows * ranks] = entries.int()
        if box.x is not None:
            box.x[:rows] = x
        else:
            assert box.q is not None and box.d is not None
            for row in range(rows):
                box.q[row], box.d[row] = quantize(x[row])
        box.header[:] = torch.tensor([layer, rows, rows * ranks], dtype=torch.int32)
        self.door.value = self.door.value + 1

    def wait(self, number: int) -> None:
        limit = time.monotonic() + PATIENCE_S
        while self.gate is not None and self.gate.value < OPEN:
            assert time.monotonic() < limit, "the gate stayed down"
            time.sleep(0)
        assert self.gate is None or self.done.value >= number, "an open gate and no answer"
        while self.done.value < number:
            assert time.monotonic() < limit, "nobody answered"
            time.sleep(0)


@contextmanager
def window_of(service: DoorbellService, mailbox: int) -> Iterator[None]:
    """While the block runs this mailbox may ring."""
    service.begin(mailbox)
    try:
        yield
    finally:
        service.end(mailbox)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


class Bench:
    """Layers of random experts, and what they must answer."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.layout = blob_layout(BY_NAME["q4_k"], BY_NAME["q6_k"], HIDDEN, WIDTH)
        self.blobs = [aligned_blobs(random_experts(layer, self.layout, EXPERTS)) for layer in range(LAYERS)]

    def layers(self) -> list[LayerExperts]:
        return [LayerExperts(self.layout, [each[n].data_ptr() for n in range(EXPERTS)]) for each in self.blobs]

    def wanted(self, layer: int, choices: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(*choices.shape, HIDDEN)
        ExpertPool(self.pool, self.layout).compute(group_by_expert(choices, self.blobs[layer]), x, out)
        return out


@pytest.fixture(scope="module")
def bench(pool: Pool) -> Bench:
    return Bench(pool)


@pytest.mark.parametrize(("is_quantized", "has_gate"), [(False, False), (True, False), (True, True)])
def test_answers_are_those_of_a_call(is_quantized: bool, has_gate: bool, bench: Bench) -> None:
    mailbox = Mailbox.create(ROWS, RANKS, HIDDEN, is_quantized=is_quantized, has_gate=has_gate)
    window = Played(mailbox)
    with DoorbellService(bench.pool, bench.layers(), [mailbox]) as service:
        for round_ in range(4):
            with window_of(service, 0):
                for layer in range(LAYERS):
                    rows = 1 + (round_ + layer) % ROWS
                    choices, x = random_choices(layer, rows, RANKS, EXPERTS), random_rows(round_, rows, HIDDEN) * 1e-2
                    window.ask(layer, choices, x)
                    window.wait(window.door.value)
                    assert mailbox.status.item() == 0
                    assert same_bits(mailbox.out[:rows], bench.wanted(layer, choices, x))
            if round_ == 1:
                service.rewind(0)
                assert (window.door.value, window.done.value) == (0, 0)


def test_many_windows_in_flight_do_not_mix(bench: Bench) -> None:
    mailboxes = [Mailbox.create(ROWS, RANKS, HIDDEN) for _ in range(6)]
    wrong: list[str] = []

    def play(number: int, service: DoorbellService) -> None:
        window = Played(mailboxes[number])
        x = random_rows(number, ROWS, HIDDEN) * 1e-2
        asked = [random_choices(number * 100 + layer, ROWS, RANKS, EXPERTS) for layer in range(LAYERS)]
        wanted = [bench.wanted(layer, choices, x) for layer, choices in enumerate(asked)]
        for _ in range(8):
            with window_of(service, number):
                for layer, choices in enumerate(asked):
                    window.ask(layer, choices, x)
                    window.wait(window.door.value)
                    if not same_bits(mailboxes[number].out, wanted[layer]):
                        wrong.append(f"window {number}, layer {layer}")

    with DoorbellService(bench.pool, bench.layers(), mailboxes) as service:
        players = [threading.Thread(target=play, args=(number, service)) for number in range(len(mailboxes))]
        for player in players:
            player.start()
        for player in players:
            player.join()
    assert wrong == []


@pytest.mark.parametrize("has_gate", [False, True])
def test_what_a_cut_off_window_asked_is_not_answered_from_the_next_windows_request(
    has_gate: bool, bench: Bench
) -> None:
    """The threads are busy for another mailbox until the next window has written half of what it asks."""
    mailboxes = [Mailbox.create(ROWS, RANKS, HIDDEN, has_gate=has_gate) for _ in range(2)]
    busy, window = map(Played, mailboxes)
    choices, x = random_choices(1, ROWS, RANKS, EXPERTS), random_rows(1, ROWS, HIDDEN) * 1e-2
    with DoorbellService(bench.pool, bench.layers(), mailboxes) as service, window_of(service, 0):
        stuck = stick(bench.pool, 0.4)
        busy.ask(0, choices, x)
        with window_of(service, 1):
            window.ask(0, choices, x)
        service.begin(1)
        mailboxes[1].header[0] = LAYERS
        assert stuck.is_alive()
        busy.wait(1)
        stuck.join()
        window.ask(2, choices, x)
        window.wait(2)
        assert same_bits(mailboxes[1].out, bench.wanted(2, choices, x))
        service.end(1)
        found = service.state(1)
        assert (found.failures, found.failure, found.answered) == (0, "", 2)
        assert service.counters().requests == 2


@pytest.mark.parametrize("has_gate", [False, True])
def test_stop_in_the_middle_raises_every_flag(has_gate: bool, bench: Bench) -> None:
    for delay in (0.0, 0.002, 0.01):
        mailboxes = [Mailbox.create(ROWS, RANKS, HIDDEN, has_gate=has_gate) for _ in range(3)]
        windows = [Played(mailbox) for mailbox in mailboxes]
        service = DoorbellService(bench.pool, bench.layers(), mailboxes)
        x = random_rows(1, ROWS, HIDDEN)

        def play(number: int, window: Played, service: DoorbellService = service, x: torch.Tensor = x) -> None:
            with window_of(service, number):
                while window.done.value != RAISED:
                    window.ask(0, random_choices(number, ROWS, RANKS, EXPERTS), x)
                    window.wait(window.door.value)

        players = [threading.Thread(target=play, args=(n, window)) for n, window in enumerate(windows)]
        for player in players:
            player.start()
        time.sleep(0.01 + delay)
        service.stop()
        for player in players:
            player.join(PATIENCE_S)
            assert not player.is_alive()
        assert [window.done.value for window in windows] == [RAISED] * 3
        for window in windows:  # which was captured, and goes on to its end without anybody
            for layer in range(LAYERS):
                window.ask(layer, random_choices(layer, ROWS, RANKS, EXPERTS), x)
                window.wait(window.door.value)
        service.stop()
        with pytest.raises(EngineError, match="was stopped"), window_of(service, 0):
            pass
        service.close()


def test_a_bad_request_is_answered_with_its_status(bench: Bench) -> None:
    mailbox = Mailbox.create(ROWS, RANKS, HIDDEN)
    layers = bench.layers()
    layers[1] = LayerExperts(bench.layout, [0] * EXPERTS)
    window = Played(mailbox)
    good, x = random_choices(1, 1, RANKS, EXPERTS), random_rows(1, 1, HIDDEN)
    with DoorbellService(bench.pool, layers, [mailbox]) as service, window_of(service, 0):
        for layer, choices in ((0, good + EXPERTS), (LAYERS, good), (1, good), (-1, good)):
            window.ask(layer, choices, x)
            window.wait(window.door.value)
            assert mailbox.status.item() != 0
        window.ask(0, good, x)
        window.wait(window.door.value)
        assert mailbox.status.item() == 0


def test_blobs_move_while_windows_ask_for_them(bench: Bench) -> None:
    twins = aligned_blobs(random_experts(0, bench.layout, EXPERTS))
    assert twins[0].data_ptr() != bench.blobs[0][0].data_ptr()
    mailbox, is_over, moves = Mailbox.create(ROWS, RANKS, HIDDEN), threading.Event(), [0]

    def move(service: DoorbellService) -> None:
        while not is_over.is_set():
            for blobs in (twins, bench.blobs[0]):
                for expert in range(EXPERTS):
                    service.place(0, expert, blobs[expert].data_ptr())
            moves[0] += 1

    window, x = Played(mailbox), random_rows(1, ROWS, HIDDEN) * 1e-2
    choices = random_choices(1, ROWS, RANKS, EXPERTS)
    wanted = bench.wanted(0, choices, x)
    with DoorbellService(bench.pool, bench.layers()[:1], [mailbox]) as service:
        mover = threading.Thread(target=move, args=(service,))
        mover.start()
        with window_of(service, 0):
            for _ in range(60):
                window.ask(0, choices, x)
                window.wait(window.door.value)
                assert mailbox.status.item() == 0
                assert same_bits(mailbox.out, wanted)
        is_over.set()
        mover.join()
        assert moves[0] > 1
        found = service.counters()
        distinct = len(set(choices.flatten().tolist()))
        assert (found.requests, found.experts) == (60, 60 * distinct)
        assert found.bytes == 60 * distinct * bench.layout.total_bytes
        for layer, expert in ((1, 0), (-1, 0), (0, EXPERTS), (0, -1)):
            with pytest.raises(EngineError, match="has no"):
                service.place(layer, expert, 0)
        with pytest.raises(EngineError, match="misaligned"):
            service.place(0, 0, twins[0].data_ptr() + 4)


def test_a_look_says_what_is_asked_and_what_failed(bench: Bench) -> None:
    mailbox = Mailbox.create(ROWS, RANKS, HIDDEN)
    window, x = Played(mailbox), random_rows(1, 2, HIDDEN)
    with DoorbellService(bench.pool, bench.layers(), [mailbox]) as service:
        service.begin(0)
        window.ask(3, torch.full((2, RANKS), EXPERTS), x)
        window.wait(1)
        found = service.state(0)
        assert (found.door, found.done, found.answered, found.is_in_flight, found.is_waiting) == (1, 1, 1, True, False)
        assert (found.layer, found.rows, found.entries) == (3, 2, 2 * RANKS)
        assert (found.failures, found.failed_layer, found.is_late) == (1, 3, False)
        assert found.failure == f"layer 3 has {EXPERTS} experts, none is number {EXPERTS}"
        service.end(0)
        assert not service.state(0).is_in_flight
    for closed in (service.counters, lambda: service.state(0), lambda: service.begin(0)):
        with pytest.raises(EngineError, match="no "):
            closed()


def test_what_a_stuck_thread_may_touch_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        """A library whose service does not end."""

        strata_doorbell_destroy = staticmethod(lambda _: 4)

    memory = object()
    service = DoorbellService(bench.pool, bench.layers(), [Mailbox.create(1, RANKS, HIDDEN)], memory=memory)
    service.stop()
    before = sys.getrefcount(memory)
    with monkeypatch.context() as context:
        context.setattr(library, "load", lambda: Stuck)
        service.close()
    del service
    assert sys.getrefcount(memory) == before


def test_a_service_without_windows_sleeps(bench: Bench) -> None:
    mailbox = Mailbox.create(ROWS, RANKS, HIDDEN)
    with DoorbellService(bench.pool, bench.layers(), [mailbox]) as service:
        with window_of(service, 0):
            pass
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.4)
        assert time.process_time() - before < 0.02


def test_what_does_not_fit_is_refused(bench: Bench) -> None:
    with pytest.raises(EngineError, match="for experts of"):
        DoorbellService(bench.pool, bench.layers(), [Mailbox.create(ROWS, RANKS, HIDDEN * 2)])
    float_layout = blob_layout(BY_NAME["bf16"], BY_NAME["bf16"], HIDDEN, WIDTH)
    with pytest.raises(EngineError, match="need float32 activations"):
        DoorbellService(
            bench.pool, [LayerExperts(float_layout, [0])], [Mailbox.create(1, 1, HIDDEN, is_quantized=True)]
        )
    mailbox = Mailbox.create(ROWS, RANKS, HIDDEN)
    with DoorbellService(bench.pool, bench.layers(), [mailbox]) as service:
        with pytest.raises(EngineError, match="there is no mailbox 1"), window_of(service, 1):
            pass
        with window_of(service, 0), pytest.raises(EngineError, match="in flight"):
            service.rewind(0)
    assert isinstance(as_struct(mailbox), abi.Mailbox)
