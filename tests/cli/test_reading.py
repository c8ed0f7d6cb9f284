"""How far a prompt has been read: in words for a bar, as two lines where no terminal is, and nothing for short ones."""

import itertools

from strata.cli.reading import ReadingLines, ReadingPace
from strata.engine.control import READING


def ticking(*seconds: float) -> "itertools.chain[float]":
    return itertools.chain(seconds)


def test_speed_and_rest_are_known_from_the_second_report_on() -> None:
    pace = ReadingPace(ticking(10.0, 12.0, 14.0, 1010.0).__next__)
    assert pace.words(100, 6100) == "100 of 6,100 tokens"
    assert pace.words(2100, 6100) == "2,100 of 6,100 tokens, 1,000/s, 4.0 s left"
    assert pace.words(2600, 102_600) == "2,600 of 102,600 tokens, 625/s, 3 min left"
    assert pace.words(4100, 4100) == "4,100 of 4,100 tokens, 4/s, 0.0 s left"


def lines_of(reports: list[tuple[str, int, int]]) -> list[str]:
    found: list[str] = []
    report = ReadingLines(found.append, ticking(*range(0, 4 * len(reports), 4)).__next__)
    for each in reports:
        report(*each)
    return found


def test_a_long_prompt_is_told_of_twice() -> None:
    reports = [("loading the model", 1, 1), *((READING, done, 6100) for done in (100, 1600, 4600, 6100))]
    assert lines_of(reports) == ["reading the prompt: 6,000 tokens", "read 6,000 tokens in 12 s, 500/s"]


def test_a_read_that_takes_long_is_told_of_every_ten_seconds() -> None:
    told: list[str] = []
    report = ReadingLines(told.append, ticking(0.0, 9.0, 12.0, 12.0, 21.0, 24.0).__next__)
    for done in (0, 900, 1200, 2100, 2400):
        report(READING, done, 2400)
    assert told == [
        "reading the prompt: 2,400 tokens",
        "reading the prompt: 1,200 of 2,400 tokens, 100/s, 12 s left",
        "read 2,400 tokens in 24 s, 100/s",
    ]


def test_a_short_one_and_the_rest_of_a_conversation_are_not() -> None:
    assert lines_of([(READING, 0, 900), (READING, 900, 900)]) == []
    assert lines_of([(READING, 6000, 6900), (READING, 6900, 6900)]) == []
