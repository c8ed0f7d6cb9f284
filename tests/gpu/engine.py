"""`python -m tests.gpu.engine`: does an engine on this GPU serve as one whose tokens the host chooses, one at a time?

For people with an NVIDIA GPU; a few minutes, the first time more for compiling. Tiny models and the shipped one,
through captured graphs: many requests at once, one window ahead, against each alone; stop tokens, cancels, kept turns,
forks; numbers that are not finite; what being one window ahead gains. `--device cpu` runs the same over torch's twins.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial

import torch

from strata.engine.request import TokenRequest
from strata.engine.stage_model import StageModel
from strata.models.base import LogitRows, Segment
from strata.native import library
from strata.quant.cell_codes import CellKind
from strata.types import FinishReason
from tests.engine.served import Served, ask
from tests.engine.stages import POCKET, TINY, native_model, stage_engine, stage_model
from tests.random_text import text_of, token_ids_of

LARGEST_DIFFERENCE = 1e-3  # of a logit, between this device and the CPU
SLOTS, CONTEXT = 4, 1024


class Checks:
    """The checks of one model on one device."""

    def __init__(self, name: str, device: torch.device, scale: int) -> None:
        self._name = name
        self._device = device
        self._scale = scale  # of texts
        self._models: dict[int, StageModel] = {}

    def all(self) -> Sequence[tuple[str, Callable[[], str]]]:
        """Each gives a line about what it found, or raises AssertionError."""
        found: list[tuple[str, Callable[[], str]]] = [
            ("many at once", self.many_at_once),
            ("stops and kept turns", self.stops_and_kept_turns),
            *((f"cancelled, {kept} kept", partial(self.cancelled, kept)) for kept in (0, 3, 18, 33)),
            ("forks", self.forks),
            ("not finite", self.not_finite),
            ("one window ahead", self.gain),
        ]
        return [("the CPU's logits", self.logits), *found] if library.is_available() else found

    def logits(self) -> str:
        model = stage_model(self._name, 1, CONTEXT, device=self._device, kind=CellKind.F32)
        native, text = native_model(self._name), text_of(150)
        state = model.new_state()
        found = model.read([Segment(state, text)], LogitRows.ALL).logits
        model.release(state)
        wanted = native.read([Segment(native.new_state(), text)], LogitRows.ALL).logits
        difference = float((found - wanted).abs().max())
        assert difference < LARGEST_DIFFERENCE, f"logits differ by {difference:.2e}"
        return f"differ by {difference:.1e} at most, the largest is {float(wanted.abs().max()):.1f}"

    def many_at_once(self) -> str:
        requests = [
            ask(token_ids_of(40, 1), 30 * self._scale),
            ask(token_ids_of(33, 2), 25 * self._scale, temperature=0.9, seed=11, top_p=0.9, top_k=40, min_p=0.01),
            ask(token_ids_of(5, 3), 30 * self._scale, range(0, 96, 9), temperature=1.3, seed=5),
            ask(token_ids_of(170, 4), 12, temperature=1.0, seed=7, frequency_penalty=0.5),
            ask(token_ids_of(40, 1), 20 * self._scale, temperature=2.0, seed=8),
            ask([*token_ids_of(170, 4), 7], 9, temperature=1.0, seed=9),
        ]
        wanted = [self._alone(request) for request in requests]
        served = self._serve(SLOTS)
        for number, request in enumerate(requests):
            served.submit(number, request)
        served.finish()
        for number, reply in enumerate(wanted):
            assert served.replies[number] == reply, f"request {number}: {served.replies[number]} is not {reply}"
        return f"{sum(map(len, wanted))} tokens of {len(wanted)} requests are the same"

    def stops_and_kept_turns(self) -> str:
        prompt = token_ids_of(30, 6)
        plain = self._alone(ask(prompt, 40, temperature=2.0, seed=3))
        stop = next(token for place, token in enumerate(plain) if place > 3 and token not in plain[:place])
        served = self._serve(1)
        first = served.ask(ask(prompt, 40, [stop], temperature=2.0, seed=3))
        assert first == plain[: plain.index(stop) + 1], f"{first} is not the beginning of {plain}"
        turn = [*prompt, *first, *token_ids_of(5, 7)]
        second = served.ask(ask(turn, 12))
        cached = list(served.ends.values())[-1].usage.cached_tokens
        assert cached == len(prompt) + len(first) - 1, f"{cached} rows were kept"
        assert second == self._alone(ask(turn, 12)), "the next turn differs from a fresh one"
        return f"stopped behind {len(first)} tokens, {cached} rows kept"

    def cancelled(self, kept: int) -> str:
        prompt = token_ids_of(130, 8)
        served = self._serve(1)
        served.submit(1, ask(prompt, 300, temperature=1.0, seed=4))
        while len(served.replies[1]) < 40:
            served.turn()
        served.scheduler.cancel(1, kept)
        turn = [*prompt, *served.replies[1][:kept], *token_ids_of(2, 9)]
        found = served.ask(ask(turn, 8))
        cached = list(served.ends.values())[-1].usage.cached_tokens
        assert cached == (130 + kept - 1 if kept > 1 else 128), f"{cached} rows were kept"
        assert found == self._alone(ask(turn, 8)), "what follows differs from a fresh read"
        return f"{cached} rows kept"

    def forks(self) -> str:
        prompt = token_ids_of(140, 10)
        served = self._serve(2)
        first = ask(prompt, 40, temperature=1.0, seed=4)
        served.submit(1, first)
        while len(served.replies[1]) < 9:
            served.turn()
        other = ask([*prompt[:132], *token_ids_of(3, 11)], 20)
        served.submit(2, other)
        served.finish()
        assert served.ends[2].usage.cached_tokens == 128
        assert served.replies == {1: self._alone(first), 2: self._alone(other)}, "a fork or its source differs"
        return "128 rows forked from a running reply"

    def not_finite(self) -> str:
        served = self._serve(2)
        requests = {number: ask(token_ids_of(9, number), 40) for number in (1, 2)}
        for number, request in requests.items():
            served.submit(number, request)
        while len(served.replies[2]) < 5:
            served.turn()
        self._model(2).stage.state.values.codes[:, served.engine._slots[0].state.index, 1].fill_(float("nan"))
        served.finish()
        end = served.ends[1]
        assert end.reason is FinishReason.ERROR and "not finite" in (end.error or ""), f"it ended as {end}"
        assert served.replies[2] == self._alone(requests[2]), "the other reply changed"
        whole = self._model(1).stage.state
        for left in (whole.delta, whole.conv_tail, whole.ngram_tail, whole.keys, whole.values, whole.raw, whole.pooled):
            left.fill_(float("nan"))
        assert self._alone(requests[2]) == served.replies[2], "what an earlier conversation left is read"
        return f"one failed behind {len(served.replies[1])} tokens, the other went on"

    def gain(self) -> str:
        """Seconds of the same replies with and without the next window under way."""
        parts = []
        for slots in (1, SLOTS):
            taken = {}
            for is_ahead in (True, False, True, False):
                served = self._serve(slots, is_ahead=is_ahead)
                for number in range(slots):
                    served.submit(number, ask(token_ids_of(5, number), 40 * self._scale))
                while min(len(reply) for reply in served.replies.values()) < 2:
                    served.turn()
                begin, before = time.perf_counter(), max(len(reply) for reply in served.replies.values())
                served.finish()
                windows = max(len(reply) for reply in served.replies.values()) - before
                taken[is_ahead] = 1e6 * (time.perf_counter() - begin) / max(1, windows)
            parts.append(f"{slots} slots {taken[True]:.0f} us a window, {taken[False]:.0f} with the host's choice")
        return "; ".join(parts)

    def _model(self, slots: int) -> StageModel:
        if slots not in self._models:
            self._models[slots] = stage_model(self._name, slots, CONTEXT, device=self._device)
        return self._models[slots]

    def _serve(self, slots: int, *, is_ahead: bool = True) -> Served:
        model = self._model(slots)
        for index in range(slots):  # whatever an earlier check left there
            model.stage.reset_slot(index)
        model.slots = type(model.slots)(model.stage)
        return Served(stage_engine(model, is_ahead=is_ahead), slots)

    def _alone(self, request: TokenRequest) -> list[int]:
        """The reply of an engine that serves nothing else and whose tokens the host chooses."""
        return self._serve(1, is_ahead=False).ask(request)


def main() -> int:
    """Run every check; the number of those that failed is the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=(*TINY, POCKET), action="append")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    failures = 0
    for name in arguments.model or (*TINY, POCKET):
        for what, check in Checks(name, device, scale=4 if device.type == "cuda" else 1).all():
            begin = time.perf_counter()
            try:
                found = check()
            except Exception:
                failures += 1
                found = "FAILED\n" + traceback.format_exc()
            print(f"{name:12} {what:24} {time.perf_counter() - begin:6.1f} s  {found}", flush=True)
    print(f"{failures} failed" if failures else "all passed", flush=True)
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
