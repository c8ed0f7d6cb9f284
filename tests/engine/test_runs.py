"""An engine whose model reads runs of many chunks over two stages: what its results tell, and how reads give way."""

import torch

from strata.engine.engine import TokenEngine
from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, Read, SlotResult
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from tests.engine.chunked_stages import chunked_model
from tests.engine.test_chain_reads import CAPACITY, reading_chain
from tests.random_text import token_ids_of

LONG, SHORT = token_ids_of(230), token_ids_of(90, 3)
POINTS = (64, 192)


def engine_on_two_stages() -> TokenEngine:
    return TokenEngine(reading_chain("qwen4_exp", (2,)), EngineSettings())


def ask(prompt: list[int]) -> TokenRequest:
    return TokenRequest(tuple(prompt), SamplingOptions(temperature=0, max_tokens=4))


def first_token(prompt: list[int]) -> tuple[int, ...]:
    engine = TokenEngine(chunked_model("qwen4_exp", context=256), EngineSettings())
    engine.run(Open(0, ask(prompt)))
    return drawn(to_end(engine, Read(0, len(prompt)))[-1])


def drawn(result: SlotResult) -> tuple[int, ...]:
    return tuple(draw.token_id for draw in result.draws)


def to_end(engine: TokenEngine, step: Read) -> list[SlotResult]:
    """All results of a run that goes on to its end."""
    results = [engine.run(step)[-1]]
    while results[-1].is_under_way:
        results.append(engine.run(step)[-1])
    return results


def test_a_run_tells_of_its_chunks_and_of_places_as_they_leave_the_last_stage() -> None:
    engine = engine_on_two_stages()
    assert engine.reads_runs and engine.chunk_rows == CAPACITY
    engine.run(Open(0, ask(LONG)))
    results = to_end(engine, Read(0, len(LONG), POINTS))
    assert drawn(results[-1]) == first_token(LONG)
    seen = list(dict.fromkeys((result.read_rows, result.points) for result in results[:-1]))
    assert seen == [(None, ()), (64, (64,)), (128, (64,)), (192, POINTS)]
    assert results[-1].points == POINTS


def test_a_run_gives_way_and_one_that_goes_on_behind_its_first_place_begins_there() -> None:
    """The second prompt shares a beginning with the one that is being read: it is copied from under it."""
    engine, shared = engine_on_two_stages(), [*LONG[:64], *SHORT]
    engine.run(Open(0, ask(LONG)))
    run = Read(0, len(LONG), POINTS)
    while not engine.run(run)[-1].points:
        pass
    engine.run(Open(1, ask(shared), source=0, position=64))
    assert drawn(to_end(engine, Read(1, len(shared)))[-1]) == first_token(shared)
    assert drawn(to_end(engine, run)[-1]) == first_token(LONG)


def test_a_run_that_is_abandoned_leaves_its_slot_at_the_last_place_while_another_goes_on() -> None:
    engine = engine_on_two_stages()
    engine.run(Open(0, ask(LONG)))
    engine.run(Open(1, ask(SHORT)))
    run, other = Read(0, len(LONG), POINTS), Read(1, len(SHORT))
    while not engine.run(run)[-1].points:
        pass
    engine.run(other)
    engine.run(run)
    engine.run(other)
    assert engine.run(Abandon(0)) == ()
    assert drawn(to_end(engine, other)[-1]) == first_token(SHORT)
    engine.run(Open(0, ask(LONG), source=0, position=64))
    assert drawn(to_end(engine, run)[-1]) == first_token(LONG)


def test_log_probabilities_of_a_prompt_are_read_chunk_by_chunk() -> None:
    engine = engine_on_two_stages()
    request = TokenRequest(tuple(SHORT), SamplingOptions(temperature=0, max_tokens=4), prompt_logprobs=1)
    engine.run(Open(0, request))
    told = to_end(engine, Read(0, len(SHORT)))[-1].prompt_logprobs
    assert told is not None and [draw.token_id for draw in told] == SHORT
    assert torch.isfinite(torch.tensor([draw.logprob for draw in told[1:]])).all()
