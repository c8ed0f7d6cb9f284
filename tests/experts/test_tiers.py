"""Tiers of one stage: tables as the store has them, windows counted, and an error for every answer that fails or fails
to come. A thread's hands play the device."""

import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from strata.errors import DeviceLostError, EngineError
from strata.experts import asking
from strata.experts.tiers import ExpertTiers, WindowSize
from strata.kernels.expert_plan.tables import OPEN, RAISED
from strata.native import library
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout
from tests.experts.busy_pool import stick
from tests.experts.test_doorbell import Played
from tests.experts.test_pool import BY_NAME, aligned_blobs, blob_layout
from tests.kernels.random_matrices import random_choices, random_experts, random_rows

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

HIDDEN, WIDTH, EXPERTS, RANKS, ROWS = 64, 32, 6, 2, 4
CPU = torch.device("cpu")
SIZE = WindowSize(ROWS, RANKS)
LIMIT_S = 0.2


@dataclass
class Places:
    """Two layers of random experts, all of them in main memory; see `ExpertPlaces`."""

    layouts: tuple[BlobLayout, ...]
    is_pinned: bool = False

    def __post_init__(self) -> None:
        self.layers = tuple(f"model.layers.{2 * index}.mlp." for index in range(len(self.layouts)))
        self.blobs = [aligned_blobs(random_experts(n, layout, EXPERTS)) for n, layout in enumerate(self.layouts)]
        addresses = [[blobs[n].data_ptr() for n in range(EXPERTS)] for blobs in self.blobs]
        self.in_ram: NDArray[np.int64] = np.array(addresses, np.int64)
        self.resident = np.where(np.arange(EXPERTS) % 3 == 1, self.in_ram, 0)

    def layout(self, layer: int) -> BlobLayout:
        return self.layouts[layer]


QUANTIZED = blob_layout(BY_NAME["q8_0"], BY_NAME["q8_0"], HIDDEN, WIDTH)
FLOATS = blob_layout(BY_NAME["bf16"], BY_NAME["bf16"], HIDDEN, WIDTH)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


@pytest.fixture
def tiers(pool: Pool) -> Iterator[ExpertTiers]:
    made = ExpertTiers(Places((QUANTIZED, QUANTIZED)), pool, CPU, SIZE)
    yield made
    made.close()


def ask(window: Played, layer: int, rows: int = 2) -> None:
    """Ring for some rows of all ranks."""
    window.ask(layer, random_choices(layer, rows, RANKS, EXPERTS), random_rows(1, rows, HIDDEN))


def test_tables_are_those_of_the_store(tiers: ExpertTiers, pool: Pool) -> None:
    places = Places((QUANTIZED, QUANTIZED))
    with_seats = ExpertTiers(places, pool, CPU, SIZE)
    for layer, tables in enumerate(with_seats.tables):
        assert tables.resident.tolist() == places.resident[layer].tolist()
        assert tables.in_place.tolist() == places.in_ram[layer].tolist()
        assert tables.share.tolist() == [0] * (EXPERTS + 1)
    with_seats.set_resident(1, 1, 0)
    with_seats.set_in_ram(0, 2, 0)
    with_seats.set_share(torch.tensor([0, 0, 1, 1, 2, 2, 3]))
    assert with_seats.layer(1).tables.resident[1] != 0
    with_seats.windows[0].launched()
    with_seats.windows[0].landed()
    first, second = with_seats.layer(0).tables, with_seats.layer(1).tables
    assert second.resident[1] == 0 != second.resident[4]
    assert first.in_place[2] == 0 != second.in_place[2]
    assert first.share.tolist() == second.share.tolist() == [0, 0, 1, 1, 2, 2, 3]
    with pytest.raises(EngineError, match="layer 0 has no expert 6"):
        with_seats.set_in_ram(0, EXPERTS, 0)
    with_seats.close()


def test_rows_are_given_as_the_layers_take_them(tiers: ExpertTiers, pool: Pool) -> None:
    assert tiers.mailboxes[0].x is None
    assert tiers.mailboxes[0].q is not None
    for layouts in ((FLOATS,), (QUANTIZED, FLOATS)):
        mixed = ExpertTiers(Places(layouts), pool, CPU, SIZE)
        assert mixed.mailboxes[0].x is not None
        mixed.close()


def test_windows_are_answered_while_one_is_in_flight_and_nobody_runs_behind_them(tiers: ExpertTiers) -> None:
    window = Played(tiers.mailboxes[0])
    tiers.windows[0].launched()
    tiers.windows[0].launched()
    for layer in (0, 1):
        ask(window, layer)
        window.wait(layer + 1)
    assert tiers.windows[0].waiting_for() == "2 windows are in flight, and none waits for the CPU"
    tiers.windows[0].landed()
    ask(window, 0)
    window.wait(3)
    tiers.windows[0].landed()
    counts = tiers.counts().cpu
    distinct = [len(set(random_choices(layer, 2, RANKS, EXPERTS).flatten().tolist())) for layer in (0, 1, 0)]
    assert (counts.requests, counts.experts) == (3, sum(distinct))
    assert counts.bytes == sum(distinct) * QUANTIZED.total_bytes
    assert counts.busy_ns > 0
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.005, "idle: less than 1 % of a core"


def test_a_failed_answer_fails_what_is_in_flight_and_nothing_else(tiers: ExpertTiers) -> None:
    window = Played(tiers.mailboxes[0])
    missing = int(random_choices(1, 2, RANKS, EXPERTS)[0, 0])
    address = int(tiers.tables[1].in_place[missing])
    tiers.windows[0].launched()
    tiers.windows[0].launched()
    tiers.set_in_ram(1, missing, 0)
    ask(window, 1)
    window.wait(1)
    ask(window, 0)  # its answer is right, and hides nothing
    window.wait(2)
    tiers.set_in_ram(1, missing, address)
    cause = rf"layer 1 \(model\.layers\.2\.mlp\.\): layer 1 has no expert {missing} in memory"
    with pytest.raises(EngineError, match=cause):
        tiers.windows[0].landed()
    tiers.windows[0].launched()  # behind them
    with pytest.raises(EngineError, match=cause):
        tiers.windows[0].landed()
    ask(window, 1)
    window.wait(3)
    tiers.windows[0].landed()


def test_a_window_that_is_cut_off_does_not_take_the_failure_of_the_one_in_front_of_it(tiers: ExpertTiers) -> None:
    window = Played(tiers.mailboxes[0])
    tiers.windows[0].launched()
    tiers.windows[0].launched()
    window.ask(9, torch.zeros(2, RANKS, dtype=torch.int32), random_rows(1, 2, HIDDEN))
    window.wait(1)
    with pytest.raises(EngineError, match="failed in layer 9"):
        tiers.windows[0].landed()
    tiers.windows[0].launched()
    tiers.windows[0].cut_off()
    with pytest.raises(EngineError, match="failed in layer 9"):
        tiers.windows[0].landed()
    assert (tiers.windows[0].waiting_for() or "").startswith("0 windows")


@pytest.mark.parametrize(("layer", "expert"), [(9, 0), (-1, 0), (0, EXPERTS), (0, -1)])
def test_a_request_that_makes_no_sense_is_an_error_and_no_crash(layer: int, expert: int, tiers: ExpertTiers) -> None:
    window = Played(tiers.mailboxes[0])
    tiers.windows[0].launched()
    window.ask(layer, torch.full((2, RANKS), expert), random_rows(1, 2, HIDDEN))
    window.wait(1)
    with pytest.raises(EngineError, match="experts on the CPU failed in layer"):
        tiers.windows[0].landed()


@pytest.mark.parametrize("waits_in_stream", [False, True])
def test_a_pool_that_stops_answering_is_an_error_within_the_limit(waits_in_stream: bool) -> None:
    pool = Pool(2)
    places = Places((QUANTIZED, QUANTIZED))
    tiers = ExpertTiers(places, pool, CPU, SIZE, LIMIT_S, waits_in_stream=waits_in_stream)
    window = Played(tiers.mailboxes[0])
    stuck = stick(pool, 1.5)
    tiers.windows[0].launched()
    begin = time.monotonic()
    ask(window, 1)
    assert "request 1, 2 rows, 4 places of layer 1 (model.layers.2.mlp.)" in (tiers.windows[0].waiting_for() or "")
    window.wait(RAISED)
    assert LIMIT_S <= time.monotonic() - begin < 2 * LIMIT_S
    ask(window, 0)  # the window goes on, and waits for nobody
    with pytest.raises(DeviceLostError, match=r"no answer in layer 1 .*request 1 .*for 0\.2 s"):
        tiers.windows[0].landed()
    with pytest.raises(DeviceLostError, match="started again"):
        tiers.windows[0].launched()
    assert stuck.is_alive(), "nobody waited for the pool"
    tiers.close()
    stuck.join()
    pool.close()


@pytest.mark.parametrize("waits_in_stream", [False, True])
def test_a_stop_in_the_middle_lets_the_window_go_and_says_so(waits_in_stream: bool, pool: Pool) -> None:
    tiers = ExpertTiers(Places((QUANTIZED, QUANTIZED)), pool, CPU, SIZE, waits_in_stream=waits_in_stream)
    window = Played(tiers.mailboxes[0])
    tiers.windows[0].launched()
    ask(window, 0)
    tiers.stop()
    window.wait(1)
    for number in (2, 3):
        ask(window, number - 2)
        window.wait(number)
    with pytest.raises(DeviceLostError, match="were stopped"):
        tiers.windows[0].landed()
    with pytest.raises(DeviceLostError, match="were stopped"):
        tiers.windows[0].launched()
    tiers.close()


def test_only_where_the_stream_waits_the_mailbox_has_a_gate_and_it_is_open(tiers: ExpertTiers, pool: Pool) -> None:
    assert tiers.mailboxes[0].gate is None
    waiting = ExpertTiers(Places((QUANTIZED,)), pool, CPU, SIZE, waits_in_stream=True)
    assert waiting.mailboxes[0].gate is not None and waiting.mailboxes[0].gate.item() == OPEN
    waiting.close()
    assert waiting.mailboxes[0].gate.item() == RAISED


def test_forgotten_windows_leave_nothing_running(tiers: ExpertTiers) -> None:
    tiers.windows[0].launched()
    tiers.windows[0].launched()
    tiers.windows[0].forget()
    tiers.windows[0].forget()
    assert (tiers.windows[0].waiting_for() or "").startswith("0 windows")
    tiers.windows[0].launched()
    ask(Played(tiers.mailboxes[0]), 0)
    tiers.windows[0].landed()


def test_what_failed_in_forgotten_windows_is_no_later_windows_failure(tiers: ExpertTiers) -> None:
    window = Played(tiers.mailboxes[0])
    missing = int(random_choices(1, 2, RANKS, EXPERTS)[0, 0])
    address = int(tiers.tables[1].in_place[missing])
    tiers.windows[0].launched()
    tiers.set_in_ram(1, missing, 0)
    ask(window, 1)
    window.wait(1)
    assert tiers._service.state(0).failures == 1
    tiers.set_in_ram(1, missing, address)
    tiers.windows[0].forget()
    tiers.windows[0].launched()
    ask(window, 1)
    window.wait(2)
    tiers.windows[0].landed()


def test_that_nobody_answers_any_more_is_told_behind_forgotten_windows_too() -> None:
    with Pool(2) as pool:
        tiers = ExpertTiers(Places((QUANTIZED, QUANTIZED)), pool, CPU, SIZE, LIMIT_S)
        stuck = stick(pool, 1.0)
        tiers.windows[0].launched()
        window = Played(tiers.mailboxes[0])
        ask(window, 1)
        window.wait(RAISED)
        tiers.windows[0].forget()
        with pytest.raises(DeviceLostError, match="gave no answer in layer 1"):
            tiers.windows[0].launched()
        assert (tiers.windows[0].waiting_for() or "").startswith("0 windows")
        tiers.close()
        stuck.join()


def test_a_service_that_ended_by_itself_is_lost_for_the_next_launch_too(tiers: ExpertTiers) -> None:
    tiers._service.stop()
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="were stopped"):
            tiers.windows[0].launched()


def test_an_interrupt_while_the_service_begins_leaves_nothing_in_flight(
    tiers: ExpertTiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = tiers._service.begin

    def interrupted(mailbox: int) -> None:
        begin(mailbox)
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(tiers._service, "begin", interrupted)
        tiers.windows[0].launched()
    assert not tiers._service.state(0).is_in_flight
    tiers.windows[0].launched()
    tiers.windows[0].landed()


def test_nothing_lands_that_is_not_in_flight(tiers: ExpertTiers) -> None:
    with pytest.raises(ValueError, match="no window is in flight"):
        tiers.windows[0].landed()


def test_a_follower_that_knows_the_tiers_keeps_nothing_alive_once_they_are_closed(pool: Pool) -> None:
    class Follower:
        def __init__(self, tiers: ExpertTiers) -> None:
            self.tiers = tiers

        def before_launch(self, is_read: bool) -> None:
            raise AssertionError("nothing is launched")

    places = Places((QUANTIZED,))
    tiers = ExpertTiers(places, pool, CPU, SIZE)
    tiers.follow(Follower(tiers).before_launch)
    memory, alive = weakref.ref(places), weakref.ref(tiers)
    gc.disable()
    try:
        tiers.close()
        del tiers, places
        assert (memory(), alive()) == (None, None)
    finally:
        gc.enable()


def test_flags_start_again_long_before_they_reach_their_end(
    tiers: ExpertTiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "REWIND_BEHIND", 2)
    window = Played(tiers.mailboxes[0])
    for door in (1, 2, 3, 1):  # beyond the limit both are put back, between windows
        tiers.windows[0].launched()
        ask(window, 0)
        assert window.door.value == door
        tiers.states[0].number.fill_(door)
        window.wait(door)
        tiers.windows[0].landed()


def test_whoever_moves_experts_is_told_of_every_launch(tiers: ExpertTiers) -> None:
    told: list[bool] = []
    tiers.follow(told.append)
    for is_read in (False, True, False):
        tiers.windows[0].launched(is_read=is_read)
        tiers.windows[0].landed()
    assert told == [False, True, False]


ENDING = """
import os, sys, time
from strata.native.pool import Pool
from tests.experts.test_tiers import CPU, QUANTIZED, SIZE, Places, Played, ExpertTiers, ask
tiers = ExpertTiers(Places((QUANTIZED,)), Pool(2), CPU, SIZE)
tiers.windows[0].launched()
child = os.fork()
if child == 0:
    try:
        tiers.windows[0].landed()
    except Exception as failure:
        print(failure)
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
window = Played(tiers.mailboxes[0])
ask(window, 0)
window.wait(1)
tiers.windows[0].landed()
tiers.windows[0].launched()  # nobody lands it
print("ended")
"""


def test_a_process_ends_with_a_window_in_flight_and_so_does_its_child() -> None:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", ENDING]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True)
    assert found.stdout.splitlines()[-1] == "ended"
    assert "forked" in found.stdout
