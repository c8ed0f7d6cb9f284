"""Windows that a stage runs and chooses the tokens of, by its own variables: what `WindowsAhead` launches and lands.

Knows plans and results as words, and the road of its group; knows when nothing of a reply and of nobody's draws needs
the host.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from strata.engine.flights import forget, land, launching
from strata.engine.reply import Reply
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.engine.window import WindowPart
from strata.engine.windows_ahead import Landed, WindowsAhead
from strata.errors import DeviceLostError, EngineError
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import GOES_ON, NOT_FINITE, read_results
from strata.kernels.sampler.slots import MOST_STOP_IDS, ReplyStart
from strata.models.base import Segment, WindowResult
from strata.models.row_model import not_finite

MOST_IN_FLIGHT = 2


@dataclass(frozen=True)
class Launched:
    """A window on its way, and where its results will be."""

    serial: int
    states: Mapping[int, StageSlot]  # by the engine's slot, in the plan's order
    words: torch.Tensor  # int32 in main memory
    done: torch.cuda.Event | None  # None: there was nothing to wait for


class DeviceWindows:
    """See `WindowDevice`. Windows are numbered, so that results are never taken for those of another one."""

    def __init__(self, model: StageModel, group: int = 0) -> None:
        """Of one group of slots, on a stage and a road of its own."""
        self._model, self._group = model, group
        self._stage = model.groups[group].stage
        self._serial = 0
        is_gpu = self._stage.device.type == "cuda"
        count = self._stage.results.words.numel()
        self._rooms = [torch.zeros(count, dtype=torch.int32, pin_memory=is_gpu) for _ in range(MOST_IN_FLIGHT)]
        self._events = [torch.cuda.Event() if is_gpu else None for _ in range(MOST_IN_FLIGHT)]

    def road(self) -> AbstractContextManager[None]:
        """See `WindowDevice`."""
        return self._model.roads.of_group(self._group)

    def join(self) -> None:
        """See `WindowDevice`."""
        self._model.roads.join(self._group)

    def chooses(self, reply: Reply) -> bool:
        """See `WindowDevice`."""
        has_room = len(reply.request.stop_token_ids) <= MOST_STOP_IDS
        return has_room and reply.sampler.device_options is not None

    def begin(self, parts: Mapping[int, WindowPart]) -> None:
        """See `WindowDevice`."""
        for part in parts.values():
            reply, options = part.reply, part.reply.sampler.device_options
            assert options is not None, "the device was asked whether it chooses for this reply"
            stop_ids, room = sorted(reply.request.stop_token_ids), reply.budget - reply.length
            start = ReplyStart(part.slot.position, reply.last_token, room, stop_ids, options)
            self._stage.set_reply(part.slot.state.index, start)

    def launch(self, parts: Mapping[int, WindowPart]) -> Launched:
        """See `WindowDevice`."""
        self._serial += 1
        states = {number: part.slot.state for number, part in parts.items()}
        place = self._serial % MOST_IN_FLIGHT
        words, done = self._rooms[place], self._events[place]
        with launching(self._stage):
            self._stage.set_plan(self._serial, [PlannedPart(state.index) for state in states.values()])
            variant = self._stage.window_variant(state.index for state in states.values())
            self._model.run_group(self._group, variant, self._stage.bucket_for(len(states)))
            words.copy_(self._stage.results.words, non_blocking=True)
            if done is not None:
                done.record(torch.cuda.current_stream(self._stage.device))
        for state in states.values():
            state.launched()
        return Launched(self._serial, states, words, done)

    def land(self, launched: Launched) -> dict[int, Landed]:
        """See `WindowDevice`."""
        if launched.done is not None:
            launched.done.synchronize()
        failure = self._landed()
        results = self._stage.results
        serial, parts = read_results(launched.words.tolist(), results.segments, results.most_drafts)
        if serial != launched.serial:
            raise RuntimeError(f"the results of window {serial} were read as those of window {launched.serial}")
        landed = {}
        for (number, state), part in zip(launched.states.items(), parts, strict=False):
            found = not_finite("the window") if failure is None and part.error == NOT_FINITE else failure
            if found is None:
                state.landed(len(part.tokens))
            else:
                state.failed()
            landed[number] = Landed(part.tokens, part.reason != GOES_ON, found)
        return landed

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        """See `LanguageModel.window`."""
        return self._model.window(segments, self._group)

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        """See `LanguageModel.commit`."""
        self._model.commit(window, accepted_rows)

    def forget(self) -> None:
        """See `WindowDevice`."""
        forget(self._stage)

    def _landed(self) -> EngineError | None:
        """Why the window that has ended means nothing, if experts on the CPU failed."""
        try:
            land(self._stage)
        except DeviceLostError:
            raise
        except EngineError as failure:
            return failure
        return None


def windows_ahead(model: StageModel) -> tuple[WindowsAhead, ...]:
    """Of every group of slots that the model has a stage for."""
    return tuple(WindowsAhead(DeviceWindows(model, group)) for group in range(len(model.groups)))
