"""Marks on a card's roads where several groups' windows run side by side: behind all of them, or refused."""

from typing import Any

import pytest
import torch

from strata.experts.streams import CudaStreams, PlainStreams, streams_of

CARD = torch.device("cuda", 0)


class Event:
    def __init__(self, **_: Any) -> None:
        self.is_over, self.at = False, 0.0

    def record(self, stream: "Stream") -> None:
        stream.events.append(self)

    def query(self) -> bool:
        return self.is_over

    def elapsed_time(self, later: "Event") -> float:
        return later.at - self.at


class Stream:
    def __init__(self, *_: Any) -> None:
        self.events: list[Event] = []
        self.awaited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.awaited.append(event)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: made)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return made


def test_a_mark_is_passed_when_the_windows_of_all_groups_have_come_to_it(main: Stream) -> None:
    lanes: Any = [Stream(), Stream()]
    streams: Any = streams_of(CARD, lanes)
    mark, later = streams.mark_main(), streams.mark_main()
    events = [each.events[0] for each in (main, *lanes)]
    for event in events:
        assert not mark.is_passed()
        event.is_over = True
    assert mark.is_passed() and not later.is_passed()
    streams.hold_side(mark)
    assert streams._side.awaited == events
    for lane, milliseconds in zip((main, *lanes), (5.0, 9.0, 7.0), strict=True):
        lane.events[1].at = milliseconds
    assert later.seconds_since(mark) == 9e-3
    streams.hold_main(streams.mark_side())
    assert main.awaited == streams._side.events


def test_windows_on_a_stream_that_nobody_told_of_are_refused(main: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an expert's seat would be written over while they read it."""
    streams = CudaStreams(CARD)
    streams.mark_main()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    with pytest.raises(RuntimeError, match="on a stream that whoever moves experts was not told of"):
        streams.mark_main()


def test_on_the_cpu_everything_is_done_when_it_was_asked_for() -> None:
    streams = streams_of(torch.device("cpu"))
    assert isinstance(streams, PlainStreams) and streams.mark_main().is_passed()
