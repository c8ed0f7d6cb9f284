"""Replies whose tokens a stage chooses, one window ahead: those of a host that chooses, whoever else is served."""

from typing import Any

import pytest
import torch

from strata.engine.request import TokenRequest
from strata.engine.slot_keeper import fixed_parts
from strata.engine.stage_slots import StageSlots
from strata.models.base import LogitRows, Segment
from strata.native import library
from strata.types import FinishReason
from tests.engine.served import Served, ask
from tests.engine.stages import EVERY_STATE, POCKET, TINY, native_model, stage_engine, stage_model
from tests.random_text import token_ids_of

every_state = pytest.mark.parametrize("family", EVERY_STATE)
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
NEAR_TIE = 1e-3  # of two logits: beyond it the roads' roundings never decide
DRAWN: dict[str, Any] = {"temperature": 0.9, "seed": 11, "top_p": 0.9, "top_k": 40, "min_p": 0.01}


def serve(family: str, slots: int = 2, *, is_ahead: bool = True) -> Served:
    return Served(stage_engine(stage_model(family, slots), is_ahead=is_ahead), slots)


def windows_run(served: Served) -> dict[str, int]:
    """From now on: how often each variant of the stage is run; windows with and without filters are windows."""
    model: Any = served.engine.model
    counts: dict[str, int] = {}
    run = model.run

    def counting(variant: Any, bucket: int) -> None:
        name = variant.value.removeprefix("unfiltered ")
        counts[name] = counts.get(name, 0) + 1
        run(variant, bucket)

    model.run = counting
    return counts


def requests() -> list[TokenRequest]:
    """Greedy and drawn, with and without stops, one whose penalties only the host knows."""
    return [
        ask(token_ids_of(10, 1), 9),
        ask(token_ids_of(33, 2), 12, **DRAWN),
        ask(token_ids_of(5, 3), 13, range(0, 96, 9), temperature=1.3, seed=5),
        ask(token_ids_of(7, 4), 4, temperature=1.0, seed=7, frequency_penalty=0.5),
        ask(token_ids_of(10, 1), 9, temperature=2.0, seed=8),
    ]


@every_state
def test_replies_are_those_of_the_host_alone_and_in_company(family: str) -> None:
    alone = serve(family, slots=1, is_ahead=False)
    wanted = [alone.ask(request) for request in requests()]
    assert [len(reply) for reply in wanted[:2]] == [9, 12]
    together = serve(family, slots=3)
    counts = windows_run(together)
    for number, request in enumerate(requests()):
        together.submit(number, request)
    together.finish()
    assert [together.replies[number] for number in range(len(wanted))] == wanted
    assert counts["window"] > 10, "the device chose"
    assert counts["forward"] > 5 + 2, "beside the prompts' ends: where a reply has penalties the host did"


@every_state
def test_a_window_runs_ahead_and_none_in_vain(family: str) -> None:
    served = serve(family, slots=1)
    counts = windows_run(served)
    assert len(served.ask(ask(token_ids_of(9), 8))) == 8
    assert counts == {"forward": 1, "commit": 1, "window": 7}


@needs_library
@pytest.mark.parametrize("family", [*TINY, POCKET])
def test_greedy_replies_are_the_cpus_up_to_near_ties(family: str) -> None:
    prompt = token_ids_of(6)
    served = serve(family, slots=1)
    reply = served.ask(ask(prompt, 5, ignore_eos=True))
    native = native_model(family)
    text = torch.tensor([*prompt, *reply])
    rows = native.read([Segment(native.new_state(), text)], LogitRows.ALL).logits[len(prompt) - 1 : -1]
    chosen = rows.gather(1, torch.tensor(reply)[:, None])[:, 0]
    assert len(reply) == 5
    assert (rows.amax(dim=1) - chosen).max() < NEAR_TIE


@every_state
def test_a_stop_token_ends_the_reply_on_the_device_and_the_next_turn_goes_on_behind_it(family: str) -> None:
    prompt = token_ids_of(30, 6)
    plain = serve(family, slots=1, is_ahead=False).ask(ask(prompt, 12, temperature=2.0, seed=3))
    stop = next(token for place, token in enumerate(plain) if place > 3 and token not in plain[:place])
    served = serve(family, slots=1)
    first = served.ask(ask(prompt, 12, [stop], temperature=2.0, seed=3))
    assert first == plain[: plain.index(stop) + 1]
    turn = [*prompt, *first, *token_ids_of(5, 7)]
    second = served.ask(ask(turn, 4))
    assert list(served.ends.values())[-1].usage.cached_tokens == len(prompt) + len(first) - 1
    assert second == serve(family, slots=1, is_ahead=False).ask(ask(turn, 4))


@pytest.mark.parametrize(("family", "kept"), [("qwen4_exp", 18), ("llama", 0), ("llama", 3), ("llama", 24)])
def test_a_cancelled_reply_goes_on_from_what_was_kept(family: str, kept: int) -> None:
    prompt = token_ids_of(66, 8)
    served = serve(family, slots=1)
    served.submit(1, ask(prompt, 60, temperature=1.0, seed=4))
    while len(served.replies[1]) < 26:
        served.turn()
    served.scheduler.cancel(1, kept)
    turn = [*prompt, *served.replies[1][:kept], *token_ids_of(2, 9)]
    assert served.ask(ask(turn, 3)) == serve(family, slots=1, is_ahead=False).ask(ask(turn, 3))
    assert list(served.ends.values())[-1].usage.cached_tokens == (66 + kept - 1 if kept > 1 else 64)


@every_state
def test_a_prompt_that_begins_like_a_running_one_is_forked_from_it(family: str) -> None:
    prompt = token_ids_of(70, 10)
    served = serve(family, slots=2)
    served.submit(1, ask(prompt, 12, temperature=1.0, seed=4))
    while len(served.replies[1]) < 4:
        served.turn()
    other = [*prompt[:66], *token_ids_of(3, 11)]
    served.submit(2, ask(other, 3))
    served.finish()
    assert served.ends[2].usage.cached_tokens == 64
    plain = serve(family, slots=1, is_ahead=False)
    assert served.replies == {1: plain.ask(ask(prompt, 12, temperature=1.0, seed=4)), 2: plain.ask(ask(other, 3))}


@pytest.mark.parametrize("is_ahead", [True, False])
def test_numbers_that_are_not_finite_end_one_request_and_the_others_go_on(is_ahead: bool) -> None:
    served = serve("llama", slots=2, is_ahead=is_ahead)
    served.submit(1, ask(token_ids_of(9, 1), 20))
    served.submit(2, ask(token_ids_of(8, 2), 20))
    while len(served.replies[2]) < 3:
        served.turn()
    model: Any = served.engine.model
    model.stage.state.values.codes[:, served.engine._slots[0].state.index, 1].fill_(float("nan"))
    served.finish()
    assert served.ends[1].reason is FinishReason.ERROR
    assert "not finite" in (served.ends[1].error or "")
    assert served.replies[2] == serve("llama", slots=1, is_ahead=False).ask(ask(token_ids_of(8, 2), 20))
    assert served.ask(ask(token_ids_of(9, 1), 4)) == serve("llama", slots=1, is_ahead=False).ask(
        ask(token_ids_of(9, 1), 4)
    )


def test_a_slot_has_room_for_so_many_stop_tokens() -> None:
    served = serve("llama", slots=1)
    reply = served.ask(ask(token_ids_of(9), 5))
    others = [token for token in range(96) if token not in reply]
    counts = windows_run(served)
    assert served.ask(ask(token_ids_of(9), 5, others[:16])) == reply
    assert counts["window"] >= 1
    before = counts["window"]
    assert served.ask(ask(token_ids_of(9), 5, others[:17])) == reply
    assert counts["window"] == before, "the host looks for more of them"


def test_memory_in_use_is_that_of_the_slots_and_their_points() -> None:
    served = serve("qwen3_5_moe", slots=2)
    served.ask(ask(token_ids_of(70), 2))
    slots: StageSlots = served.engine.model.slots  # type: ignore[attr-defined]
    kept = sum(part.nbytes for part in fixed_parts(slots.stage.stages[0].state, 0))
    assert kept > 10_000
    # A point at row 64 is a checkpoint; what the slot has at the prompt's end belongs to its state.
    assert served.engine.memory() == {"states": slots.slot_bytes + kept, "checkpoints": kept}
    served.engine.forget_all()
    assert served.engine.memory() == {"states": 0, "checkpoints": 0}


def test_experts_are_counted_where_they_run() -> None:
    served = serve("qwen4_exp", slots=1)
    served.ask(ask(token_ids_of(9), 5))
    assert served.engine.experts() == {"vram": (9 + 4) * served.engine.model.experts_per_row}
