"""Windows that ask: the service is awake from the first launch to the last landing; failures reach all in flight."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strata.errors import DeviceLostError, EngineError
from strata.experts import asking
from strata.experts.asking import Answers, AskingWindows, AskingWords
from strata.experts.table_service import TableService
from strata.kernels.expert_plan.tables import RAISED, PlanState
from strata.native import library
from strata.native.pool import Pool
from strata.quant.formats import by_name
from tests.experts.busy_pool import stick
from tests.experts.tables import Asker, mailbox_for, stored_in

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

IDS = torch.tensor([[3, 5]])


class Side:
    """Windows over two tables, the first in a file that a test may break."""

    def __init__(self, folder: Path, readers: Pool) -> None:
        kinds = by_name("Q8_0"), by_name("Q4_0")
        tables = [stored_in(folder, kind, 64, (20,)) for kind in kinds]
        self.file = tables[0].pieces[0].file
        boxes = [mailbox_for(table, 4, 2, has_gate=True) for table in tables]
        self.askers = [Asker(box) for box in boxes]
        self.readers = readers
        self.states = [PlanState.create("cpu") for _ in boxes]
        self.service = TableService(readers, tables, boxes)
        pairs = list(zip(boxes, self.states, strict=True))
        words = AskingWords("reading", "the threads", lambda number: f"table number {number}")
        self.answers = Answers(self.service, words)
        self.windows = AskingWindows(self.answers, dict(enumerate(pairs)))

    def ask(self) -> None:
        """A window's two requests, answered."""
        for number, asker in enumerate(self.askers):
            asker.ask(IDS, table=number)
            self.states[number].number.add_(1)
            asker.wait()

    @property
    def in_flight(self) -> list[bool]:
        return [self.service.state(number).is_in_flight for number in range(2)]

    def break_file(self) -> None:
        os.utime(self.file, ns=(0, 0))


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    with Pool(1) as readers:
        made = Side(tmp_path, readers)
        yield made
        made.answers.close()


def test_the_service_is_awake_while_a_window_is_in_flight(side: Side) -> None:
    assert side.in_flight == [False, False]
    side.windows.launched()
    side.windows.launched()
    side.ask()
    side.windows.landed()
    assert (len(side.windows), side.in_flight) == (1, [True, True])
    side.windows.cut_off()
    assert (len(side.windows), side.in_flight) == (0, [False, False])
    with pytest.raises(ValueError, match="no window is in flight"):
        side.windows.landed()


def test_a_failure_reaches_all_in_flight_once_and_nobody_later(side: Side) -> None:
    side.windows.launched()
    side.windows.launched()
    side.break_file()
    side.ask()
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^reading failed in table number 0: Q8_0-0\.bin has changed since"):
            side.windows.landed()
    side.windows.launched()
    side.windows.landed()
    side.windows.launched()
    side.ask()
    side.windows.forget()
    assert side.in_flight == [False, False]
    side.windows.launched()
    side.windows.landed()


def test_what_is_waited_for_is_told_in_words(side: Side) -> None:
    side.windows.launched()
    assert side.windows.waiting_for() is None
    stuck = stick(side.readers, 0.3)
    side.askers[1].ask(IDS, table=1)
    assert side.windows.waiting_for() == "a window waits for reading: request 1, 1 rows, 2 places of table number 1"
    side.askers[1].wait()
    side.windows.landed()
    stuck.join()


def test_behind_a_stop_nobody_goes_on(side: Side) -> None:
    side.windows.launched()
    side.answers.stop()
    assert all(asker.done.value == RAISED for asker in side.askers)
    with pytest.raises(DeviceLostError, match="the threads were stopped"):
        side.windows.landed()
    with pytest.raises(DeviceLostError, match="were stopped"):
        side.windows.launched()
    assert len(side.windows) == 0


def test_a_beginning_that_fails_leaves_nothing_in_flight(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TableService.begin

    def refuse_second(service: TableService, box: int) -> None:
        if box == 1:
            raise KeyboardInterrupt
        begin(service, box)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(TableService, "begin", refuse_second)
        side.windows.launched()
    assert (len(side.windows), side.in_flight) == (0, [False, False])
    side.windows.launched()
    side.ask()
    side.windows.landed()


def test_flags_begin_again_long_before_they_end(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "REWIND_BEHIND", 2)
    for _ in range(3):
        side.windows.launched()
        side.ask()
        side.windows.landed()
    assert [asker.door.value for asker in side.askers] == [3, 3]
    side.windows.launched()
    assert [asker.door.value for asker in side.askers] == [0, 0]
    assert [int(state.number) for state in side.states] == [0, 0]
    side.ask()
    side.windows.landed()


def test_a_groups_failures_are_told_to_its_own_windows_and_an_end_to_all(tmp_path: Path) -> None:
    """Two groups of one service; each has the first table, and a mailbox of its own for it."""
    with Pool(1) as readers:
        table = stored_in(tmp_path, by_name("Q8_0"), 64, (20,))
        boxes = [mailbox_for(table, 4, 2, has_gate=True) for _ in range(2)]
        states = [PlanState.create("cpu") for _ in boxes]
        service = TableService(readers, [table], boxes)
        answers = Answers(service, AskingWords("reading", "the threads", lambda number: f"table number {number}"))
        launched = list[tuple[int, bool]]()
        groups = [
            AskingWindows(
                answers,
                {box: pair},
                lambda is_read, box=box: launched.append((box, is_read)),  # type: ignore[misc]
            )
            for box, pair in enumerate(zip(boxes, states, strict=True))
        ]
        for group in groups:
            group.launched()
        groups[1].launched(is_read=True)
        assert launched == [(0, False), (1, False), (1, True)]
        os.utime(table.pieces[0].file, ns=(0, 0))
        asker = Asker(boxes[1])
        asker.ask(IDS, table=0)
        states[1].number.add_(1)
        asker.wait()
        groups[0].landed()
        assert [service.state(box).is_in_flight for box in range(2)] == [False, True]
        for _ in range(2):
            with pytest.raises(EngineError, match=r"^reading failed in table number 0"):
                groups[1].landed()
        groups[0].launched()
        answers.stop()
        for group in groups:
            with pytest.raises(DeviceLostError, match="the threads were stopped"):
                group.launched()
        with pytest.raises(DeviceLostError, match="the threads were stopped"):
            groups[0].landed()
        answers.close()
