"""Records which experts a model chooses while it answers prompts, one conversation after another, on the CPU.

Knows how rows become state and whose routing that was; the file that a trace is kept in is `experts/trace.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from strata.api import default_options, make_runner
from strata.build import LoadedModel, load_model
from strata.engine.control import RunControl
from strata.engine.engine import TokenEngine
from strata.engine.request import RunEnded, TokenRequest
from strata.errors import EngineError, ModelError, RequestError, SettingsError
from strata.experts.sources import open_experts
from strata.experts.trace import Trace
from strata.models.base import DraftHead, LanguageModel, LogitRows, Output, Reading, Segment, WindowResult
from strata.models.blocks.moe import RoutingObserver
from strata.models.reading import OutputSteps, Steps, run_through
from strata.settings import Settings
from strata.types import ProgressCallback
from strata.weights.opening import open_model


class ObservableModel(LanguageModel, Protocol):
    """A model that tells which experts it chooses."""

    def observe_routing(self, observer: RoutingObserver | None) -> None:
        """Call `observer(layer, expert ids [rows, ranks])` for the rows of every call; None: stop."""
        ...


@dataclass(frozen=True)
class _Rows:
    """Rows that became state in one step."""

    ids: NDArray[np.int16]  # [rows, layers, ranks]
    step: int
    is_read: bool
    conversation: int
    first_position: int


class RecordedModel:
    """A `LanguageModel` that runs another one and notes the routing of rows that become state, and of no others."""

    def __init__(self, model: ObservableModel) -> None:
        self.config: Any = model.config
        self.vocabulary_size = model.vocabulary_size
        self.max_position = model.max_position
        self.experts_per_row = model.experts_per_row
        self.reads_as_windows, self.keeps_marks = model.reads_as_windows, False
        self.chunk_rows, self.most_window_rows = model.chunk_rows, model.most_window_rows
        self.experts_place, self.experts_counted = model.experts_place, model.experts_counted
        self.experts_read, self.pages_counted = model.experts_read, model.pages_counted
        self.waiting_for, self.read_ahead = model.waiting_for, model.read_ahead
        self.reads_runs = model.reads_runs
        self.arrivals = model.arrivals
        self.conversation = 0  # whose rows are computed now
        self.rows: list[_Rows] = []
        self._model = model
        self._seen: dict[int, list[torch.Tensor]] = {}  # a call's; a draft layer's, told between calls, are forgotten
        self._steps = 0
        self._window: tuple[WindowResult, NDArray[np.int16]] | None = None  # the last one
        model.observe_routing(self._see)

    @property
    def draft_head(self) -> DraftHead | None:
        """The model's own."""
        return self._model.draft_head

    def new_state(self) -> Any:
        return self._model.new_state()

    def release(self, state: Any) -> None:
        self._model.release(state)

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        assert not marks, "a read on the CPU keeps no state inside its rows"
        return Steps(self._read_steps(segment, logit_rows))

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        outputs = [run_through(self._read_steps(segment, logit_rows)) for segment in segments]
        return Output(torch.cat([each.logits for each in outputs]), torch.cat([each.hidden for each in outputs]))

    def _read_steps(self, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        """As the model reads them; there is nobody whose windows come in between."""
        position = segment.state.position
        self._seen.clear()
        reading = self._model.begin_read(segment, logit_rows)
        while not reading.advance():
            yield
        self._steps += 1
        self._note(self._chosen(), position, is_read=True)
        return reading.finish()

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        self._seen.clear()
        window = self._model.window(segments)
        self._steps += 1
        self._window = (window, self._chosen())
        return window

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        assert self._window is not None and self._window[0] is window, "windows are committed before the next begins"
        first = 0
        for segment, accepted in zip(window.segments, accepted_rows, strict=True):
            if accepted:
                self._note(self._window[1][first : first + accepted], segment.state.position, is_read=False)
            first += segment.token_ids.shape[0]
        self._model.commit(window, accepted_rows)

    def _see(self, layer: int, expert_ids: torch.Tensor) -> None:
        self._seen.setdefault(layer, []).append(expert_ids)

    def _chosen(self) -> NDArray[np.int16]:
        """What the last call's rows chose [rows, layers, ranks]; torch tells of a read tile by tile."""
        by_layer = [torch.cat(self._seen[layer]) for layer in sorted(self._seen)]
        return torch.stack(by_layer, dim=1).to(torch.int16).numpy()

    def _note(self, ids: NDArray[np.int16], first_position: int, *, is_read: bool) -> None:
        self.rows.append(_Rows(ids, self._steps - 1, is_read, self.conversation, first_position))


def record_routing(
    directory: Path | None,
    settings: Settings,
    prompts: Sequence[str],
    *,
    raw: bool,
    on_progress: ProgressCallback | None = None,
) -> Trace:
    """Answer each prompt in a conversation of its own, or continue it (`raw`), and return the routing of all rows.

    Raises SettingsError for a device that is not the CPU, ModelError for a model without experts, RequestError for a
    prompt that cannot be served and EngineError if the engine fails; then nothing of the recording is kept.
    """
    if settings.engine.device == "cuda":
        raise SettingsError(
            "setting device: cuda does not work here: routing is recorded on the CPU; auto and cpu work"
        )
    engine_settings = replace(settings.engine, device="cpu", slots=1)
    loaded = load_model(directory, engine_settings, on_progress)
    try:
        model = cast(ObservableModel, loaded.engine.model)
        if not model.experts_per_row:
            raise ModelError(f"{loaded.directory.name} has no routed experts: there is nothing to record")
        recorded = RecordedModel(model)
        loaded = replace(loaded, engine=TokenEngine(recorded, engine_settings))
        requests = [_request(loaded, settings, prompt, raw=raw) for prompt in prompts]
        _answer(loaded, replace(settings, engine=engine_settings), requests, recorded, on_progress)
    finally:
        if loaded.tokenizer.chat_template is not None:
            loaded.tokenizer.chat_template.close()
    return _trace_of(recorded.rows, loaded.directory.name, *_sizes(loaded.directory, engine_settings.quantize))


def _request(loaded: LoadedModel, settings: Settings, prompt: str, *, raw: bool) -> TokenRequest:
    options = default_options(settings.generation).seeded()
    if raw or loaded.tokenizer.chat_template is None:
        token_ids = loaded.tokenizer.encode(prompt, add_special_tokens=True)
    else:
        token_ids = loaded.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    request = TokenRequest(tuple(token_ids), options, loaded.end_of_text_ids)
    try:
        loaded.engine.check(request)
    except RequestError as reason:
        shown = prompt if len(prompt) <= 40 else prompt[:40] + "..."
        raise RequestError(f"prompt {shown!r}: {reason}") from reason
    return request


def _answer(
    loaded: LoadedModel,
    settings: Settings,
    requests: Sequence[TokenRequest],
    recorded: RecordedModel,
    on_progress: ProgressCallback | None,
) -> None:
    """Run the requests; each finds empty slots, so that every prompt is read from its first row."""
    most = settings.generation.max_tokens or loaded.engine.context
    for number, request in enumerate(requests):
        recorded.conversation = number
        drawn = 0
        for event in make_runner(loaded, settings.engine).run(request, RunControl()):
            if isinstance(event, RunEnded):
                if event.error is not None:
                    raise EngineError(event.error)
                break
            drawn += len(event.draws)
            if on_progress is not None:
                on_progress("recording", min(number * most + drawn, len(requests) * most - 1), len(requests) * most)
    if on_progress is not None:
        on_progress("recording", len(requests) * most, len(requests) * most)


def _sizes(directory: Path, quantize: str) -> tuple[int, tuple[int, ...]]:
    """Experts of a layer, and bytes of one expert of each layer as caches hold them."""
    experts = open_experts(open_model(directory, quantize))
    layers = [layer for layer in experts.layers() if not layer.startswith("mtp.")]
    return experts.count(layers[0]), tuple(experts.layout(layer).total_bytes for layer in layers)


def _trace_of(rows: Sequence[_Rows], model: str, experts: int, blob_bytes: tuple[int, ...]) -> Trace:
    counts = [len(each.ids) for each in rows]

    def column(values: Sequence[int]) -> NDArray[np.int32]:
        return np.repeat(np.array(values, np.int32), counts)

    return Trace(
        model=model,
        experts=experts,
        blob_bytes=blob_bytes,
        ids=np.concatenate([each.ids for each in rows]),
        steps=column([each.step for each in rows]),
        is_read=np.repeat([each.is_read for each in rows], counts),
        conversations=column([each.conversation for each in rows]),
        positions=np.concatenate([np.arange(len(each.ids), dtype=np.int32) + each.first_position for each in rows]),
    )
