"""Conversations that take turns in one slot, beside the same ones with a slot each: for tests and for tests/gpu."""

import torch

from strata.engine.device_windows import windows_ahead
from strata.engine.engine import TokenEngine
from strata.engine.stage_model import StageModel
from strata.experts.host_memory import Pinning
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.stages import stage_model
from tests.random_text import token_ids_of

ROOM = 4 << 20


def engine_with_parking(model: StageModel, size: int = ROOM, *, is_ahead: bool = True) -> TokenEngine:
    """Over an empty model."""
    device = model.stage.device
    model.slots.parked.make_room(size, model.max_position, Pinning.cuda() if device.type == "cuda" else None)
    ahead = windows_ahead(model) if is_ahead else ()
    return TokenEngine(model, SETTINGS, ahead=ahead, parking=model.slots.parked.space)


def take_turns(served: Served, count: int = 3, rounds: int = 3, rows: int = 280) -> list[list[int]]:
    """Replies of conversations that go on one after another; asserts that no row is read twice."""
    texts = [token_ids_of(rows + 7 * number, number) for number in range(count)]
    replies = []
    for turn in range(rounds):
        for number, text in enumerate(texts):
            reply = served.ask(ask(text, 12))
            cached = served.ends[max(served.ends)].usage.cached_tokens
            assert cached == (len(text) - 10 if turn else 0), "rows were read again"
            replies.append(reply)
            texts[number] = [*text, *reply, *token_ids_of(9, 50 + number + turn)]
    return replies


def check_turns(name: str, device: torch.device, count: int = 3, rounds: int = 3, rows: int = 280) -> str:
    """In one slot they are what they are with a slot each. rows: of their first prompts."""
    apart = Served(engine_with_parking(stage_model(name, count, device=device), 0), count)
    shared = Served(engine_with_parking(stage_model(name, 1, device=device)), 1)
    wanted = take_turns(apart, count, rounds, rows)
    assert take_turns(shared, count, rounds, rows) == wanted, "other tokens"
    counts = shared.scheduler.statistics().parked
    moved = (counts["kept"], counts["parked"], counts["returned"], counts["dropped"])
    assert moved == (count - 1, count * rounds - 1, count * (rounds - 1), 0)
    return f"{sum(map(len, wanted))} tokens are the same, and {counts['rows']:,} rows were not read again"
