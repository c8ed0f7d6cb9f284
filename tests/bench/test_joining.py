"""Scenarios with joining prompts: who is sent when, what is told of gaps, pauses and tokens, and their picture."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from strata.bench.join_measures import MEASURES, measured, target_of
from strata.bench.join_modes import JoinMode, parse_modes, parse_names
from strata.bench.join_plan import Sizes, scaled_scenarios
from strata.bench.joining import (
    QUESTION_ROWS,
    Client,
    Joined,
    Scenario,
    Seen,
    follow_up,
    read_alone,
    run_scenario,
    two_joiners,
)
from strata.bench.joining_picture import COLORS, LEFT, RIGHT, WIDTH, Panel, draw_gaps, kind_of, tick_step
from strata.bench.simulation import TWO_5090, WHOLE, Simulation
from strata.engine.messages import Ended
from strata.errors import EngineError, SettingsError
from strata.scheduler.read_modes import ReadMode
from strata.settings import EngineSettings
from strata.types import FinishReason, Usage

SVG = "{http://www.w3.org/2000/svg}"
SIMULATION = Simulation(TWO_5090, EngineSettings())
# One stream, and a prompt that joins it at 1.0 and has its first token at 3.0.
SCENARIO = Scenario("two_joiners", (Client("first", 100, 2), Client("second", 50, 2)), streams=1, stream_tokens=5)
JOINED = Joined(
    SCENARIO,
    began=10.0,
    ended=14.0,
    seen={
        "stream 1": Seen(9.0, [10.0, 10.9, 11.5, 12.9, 13.1], [1, 1, 2, 1, 1]),
        "first": Seen(11.0, [12.0, 14.0], [1, 1]),
        "second": Seen(11.0, [13.0, 14.0], [1, 1]),
    },
)


def test_what_is_told_of_a_run() -> None:
    assert JOINED.longest_pause == pytest.approx(1.4)
    assert JOINED.total_paused == pytest.approx(0.9 + 0.6 + 1.4)
    assert JOINED.tokens_meanwhile == 2 + 1, "at 11.5 and 12.9; not at 10.9 and 13.1"
    assert JOINED.gaps_meanwhile == pytest.approx([0.2, 0.6, 1.4])
    assert JOINED.token_rate == pytest.approx((1 + 2 + 1 + 1 + 4) / 4.0), "but for what came at 10.0"
    rows = measured({"two_joiners": JOINED})
    assert rows["second prompt to its first token"] == pytest.approx(2.0)
    assert rows["p99 gap of a stream meanwhile"] == pytest.approx(1.4)
    assert len(rows) == 7


def test_targets_are_of_layers_and_of_pieces_pauses() -> None:
    pause, _, tokens, *_ = MEASURES
    layers, half = JoinMode(ReadMode.LAYERS), JoinMode(ReadMode.PIECES, 32_768)
    of_layers, of_half = target_of(pause, layers), target_of(pause, half)
    assert of_layers is not None and of_half is not None
    assert of_layers.is_met(0.11, 6.0) and not of_layers.is_met(0.13, 6.0), "a fiftieth"
    assert of_layers.is_met(0.1, 1.0) and not of_layers.is_met(0.16, 20.0), "100 ms at least, 150 at most"
    assert of_half.is_met(4.0, 10.0) and not of_half.is_met(4.1, 10.0)
    assert target_of(pause, half, first_rows=100_000) is None and target_of(tokens, layers) is None


def test_clients_come_when_the_scenario_says() -> None:
    joined = SIMULATION.run(two_joiners(second_sent=2.0, stream_tokens=900), WHOLE)
    sent = [joined.seen[name].sent - joined.began for name in ("first", "second")]
    assert sent[0] == 0.0 and 2.0 <= sent[1] < 2.1
    assert all(len(stream.tokens) == 900 for stream in joined.streams.values())
    assert all(seen.ended is not None for seen in joined.seen.values())


def test_an_idle_engine_waits_for_the_next_client() -> None:
    joined = SIMULATION.run(replace(follow_up(30.0), joiners=follow_up(30.0).joiners[1:]), WHOLE)
    assert joined.seen["question"].sent == 30.0


def test_a_failed_request_ends_the_run() -> None:
    class Failing:
        has_work = True

        def submit(self, number: int, request: object) -> None: ...

        def turn(self) -> list[Ended]:
            return [Ended(0, FinishReason.ERROR, Usage(0, 0, 0, 0, 0, 0.0, 0.0), "out of paper")]

    with pytest.raises(EngineError, match="long: out of paper"):
        run_scenario(read_alone(), Failing(), lambda name, rows: (1,), lambda: 0.0, lambda seconds: None)  # type: ignore[arg-type]


def test_offsets_and_streams_are_parts_of_what_whole_takes() -> None:
    found = scaled_scenarios(
        ("two_joiners", "followup", "read_alone"), Sizes(0.5), lambda scenario: SIMULATION.run(scenario, WHOLE)
    )
    joiners, question, alone = found
    assert [each.prompt_rows for each in joiners.joiners] == [32_768, 16_384]
    first = SIMULATION.run(joiners.without_followers(), WHOLE).seen["first"].first_token
    assert joiners.joiners[1].sent == pytest.approx(0.87 * first)
    assert 1.5 * first / 0.014 <= joiners.stream_tokens <= 1.5 * first / 0.012, "what windows of four or five take"
    long, short = question.joiners
    assert (long.prompt_rows, short.prompt_rows) == (22_500, QUESTION_ROWS), "a question stays a question"
    read = SIMULATION.run(alone, WHOLE).seen["long"].first_token
    assert short.sent == pytest.approx(0.18 * read)
    asked = scaled_scenarios(("two_joiners",), Sizes(0.1, stream_tokens=7), lambda each: SIMULATION.run(each, WHOLE))
    assert asked[0].stream_tokens == 7


def test_modes_are_named_as_they_are_given() -> None:
    assert [mode.name for mode in parse_modes("whole, pieces:100,layers")] == ["whole", "pieces:100", "layers"]
    for given in ("", "pieces", "pieces:0", "pieces:-1", "layers:3", "fast"):
        with pytest.raises(SettingsError, match="--modes"):
            parse_modes(given)
    assert parse_names("b,a,b", ("a", "b"), "--x") == ("b", "a")
    with pytest.raises(SettingsError, match=r"--x c: c does not work; a, b do"):
        parse_names("c", ("a", "b"), "--x")


def test_the_picture_has_a_lane_a_stream_and_gaps_where_and_as_long_as_they_were() -> None:
    root = ElementTree.fromstring(draw_gaps("a <card> & more", [Panel("whole", JOINED), Panel("layers", JOINED)]))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert "a <card> & more" in texts and texts.count("stream 1") == texts.count("second") == 2
    gaps = [each for each in root.iter(f"{SVG}rect") if each.attrib.get("fill") in COLORS.values()][3:]
    assert [each.attrib["fill"] for each in gaps] == [COLORS["pause"]] * 3 + [COLORS["long"]] + [
        COLORS["pause"]
    ] * 3 + [COLORS["long"]]
    second = (WIDTH - LEFT - RIGHT) / 4.0
    assert float(gaps[2].attrib["x"]) == pytest.approx(LEFT + 1.5 * second, abs=0.1)
    assert float(gaps[2].attrib["width"]) == pytest.approx(1.4 * second, abs=0.1)
    assert float(gaps[2].attrib["height"]) > float(gaps[3].attrib["height"])
    assert [tick_step(seconds) for seconds in (26.1, 4.0, 100.0, 0.3)] == pytest.approx([5.0, 0.5, 10.0, 0.05])
    assert [kind_of(gap) for gap in (0.1, 0.11, 0.5, 0.51)] == ["short", "long", "long", "pause"]
