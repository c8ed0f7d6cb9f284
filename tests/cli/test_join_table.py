"""The table of modes: ratios to `whole`, spreads, and whether what is wanted was reached; 80 columns."""

from rich.console import Console

from strata.bench.join_measures import LONGEST_PAUSE, MEASURES
from strata.bench.join_modes import parse_modes
from strata.bench.spread import Spread
from strata.cli.join_table import join_table, number

WHOLE, HALF, LAYERS = parse_modes("whole,pieces:500,layers")
PAUSE, PAUSED = MEASURES[:2]


def shown(values: object, published: object = None) -> list[str]:
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        console.print(join_table([PAUSE, PAUSED], values, 1000, published))  # type: ignore[arg-type]
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_every_mode_stands_beside_whole_and_what_is_wanted_of_it() -> None:
    none = Spread.of([0.0])
    values = {
        WHOLE: {LONGEST_PAUSE: Spread.of([9.0, 10.0, 12.0]), PAUSED.title: Spread.of([10.0])},
        HALF: {LONGEST_PAUSE: Spread.of([4.1]), PAUSED.title: Spread.of([11.0])},
        LAYERS: {LONGEST_PAUSE: Spread.of([0.12]), PAUSED.title: none},
    }
    assert shown(values)[1:] == [
        "longest pause of a stream",
        "whole 10.0 9.000-12.0",
        "pieces:500 4.100 0.41x <= 4.000 NO",
        "layers 0.120 0.01x <= 0.150 yes",
        "total paused (gaps over 0.5 s)",
        "whole 10.0",
        "pieces:500 11.0 1.10x",
        "layers 0.000 0.00x <= 0.000 yes",
    ]
    beside = shown(values, {WHOLE: {LONGEST_PAUSE: 8.0}})
    assert "whole 10.0 8.000 +25.0%" in beside and "layers 0.120 0.01x <= 0.150 yes" in beside


def test_without_whole_nothing_is_compared() -> None:
    assert shown({LAYERS: {LONGEST_PAUSE: Spread.of([0.5]), PAUSED.title: Spread.of([0.5])}})[2] == "layers 0.500"


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (0.0123, 1.5, 12.34, 1234.5)] == ["0.012", "1.500", "12.3", "1,234"]
