"""A recording holds the choices of the rows that became state, and of no others, whatever computed them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strata.api import Engine
from strata.bench.routing import record_routing
from strata.build import load_model
from strata.cli.synth import synth
from strata.errors import EngineError, ModelError, RequestError, SettingsError
from strata.experts.trace import Trace
from strata.models.base import Segment
from strata.settings import Settings, resolve
from strata.types import TextPiece

PROMPTS = ["What does harbour mean?", "A harbour is"]


def settings(**more: Any) -> Settings:
    return resolve({"max_tokens": 9, "threads": 1} | more)


def observed(model: Path, token_ids: list[int]) -> np.ndarray:
    """The choices of one read over all tokens [rows, layers, ranks], without recorder or engine."""
    engine: Any = load_model(model, settings().engine).engine
    seen: dict[int, torch.Tensor] = {}
    engine.model.observe_routing(lambda layer, ids: seen.update({layer: ids}))
    engine.model.read([Segment(engine.model.new_state(), torch.tensor(token_ids))])
    layers = range(engine.model.config.num_layers)
    return torch.stack([seen[layer] for layer in layers], dim=1).numpy()


def tokens(model: Path, prompt: str) -> list[int]:
    """The tokens of a prompt and its reply that are computed: nobody computes a reply's last token."""
    with Engine(model, settings=settings()) as engine:
        reply = [event.token_id for event in engine.generate(prompt) if isinstance(event, TextPiece)]
        drawn = [token for token in reply if token is not None]
        return (engine.tokenize(prompt) + drawn)[:-1]


def test_a_recording_is_what_one_read_over_the_whole_text_chooses(tiny_model: Path) -> None:
    trace = record_routing(tiny_model, settings(), PROMPTS, raw=True)
    for number, prompt in enumerate(PROMPTS):
        rows = trace.conversations == number
        assert np.array_equal(trace.ids[rows], observed(tiny_model, tokens(tiny_model, prompt)))
        assert trace.positions[rows].tolist() == list(range(rows.sum()))
        read = trace.is_read & rows
        assert len(np.unique(trace.steps[read])) == 1
        assert (~trace.is_read & rows).sum() == 8  # of nine tokens, all but the last
    assert (np.diff(trace.steps) >= 0).all()
    assert trace.steps[-1] == len(np.unique(trace.steps)) - 1


def test_a_prompt_that_is_read_in_pieces_has_a_step_for_each(tiny_model: Path) -> None:
    trace = record_routing(tiny_model, settings(chunk_rows=64), ["a harbour is a place " * 20], raw=True)
    rows = int(trace.is_read.sum())
    assert rows > 64
    assert len(np.unique(trace.steps[trace.is_read])) == -(-rows // 64)
    assert trace.positions.tolist() == list(range(rows + 8))


def without_steps(trace: Trace) -> list[Any]:
    return [trace.ids.tolist(), trace.is_read.tolist(), trace.conversations.tolist(), trace.positions.tolist()]


def test_drafts_change_how_many_windows_there_are_and_no_row(tiny_model: Path) -> None:
    plain = record_routing(tiny_model, settings(), PROMPTS, raw=False)
    drafted = record_routing(tiny_model, settings(drafts=3), PROMPTS, raw=False)
    assert without_steps(drafted) == without_steps(plain)
    assert plain.ids.shape[1] == 4  # the draft layer is none of them


def test_torch_records_as_the_native_library_does(tiny_model: Path) -> None:
    native = record_routing(tiny_model, settings(), PROMPTS, raw=True)
    by_torch = record_routing(tiny_model, settings(cpu_path="torch"), PROMPTS, raw=True)
    assert by_torch.ids.shape == native.ids.shape
    assert (by_torch.ids == native.ids).mean() > 0.95  # near ties may fall the other way
    assert without_steps(by_torch)[1:] == without_steps(native)[1:]
    assert by_torch.blob_bytes == native.blob_bytes


def test_dense_layers_are_not_in_a_recording(tmp_path: Path) -> None:
    synth("qwen3_moe", tmp_path / "m", fields=["vocab_size=8192", "mlp_only_layers=[1]"])
    trace = record_routing(tmp_path / "m", settings(), ["one two"], raw=True)
    layers = load_model(tmp_path / "m", settings().engine).engine.model.config.num_layers
    assert trace.ids.shape[1] == len(trace.blob_bytes) == layers - 1


def test_progress_reaches_its_end(tiny_model: Path) -> None:
    said: list[tuple[str, int, int]] = []
    record_routing(tiny_model, settings(), PROMPTS, raw=True, on_progress=lambda *each: said.append(each))
    recording = [(done, total) for stage, done, total in said if stage == "recording"]
    assert recording == sorted(recording)
    assert recording[-1] == (18, 18)


def test_what_cannot_be_recorded_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="setting device: cuda does not work here"):
        record_routing(tiny_model, settings(device="cuda"), PROMPTS, raw=True)
    with pytest.raises(RequestError, match=r"prompt 'word word .*\.\.\.': the prompt has .* tokens and the context"):
        record_routing(tiny_model, settings(context=20), ["fine", "word " * 50], raw=True)
    synth("llama", tmp_path / "dense", fields=["vocab_size=8192"])
    with pytest.raises(ModelError, match="dense has no routed experts: there is nothing to record"):
        record_routing(tmp_path / "dense", settings(), PROMPTS, raw=True)


def test_a_failing_engine_ends_the_recording(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.models.row_model import RowModel

    def fails(*_: Any, **__: Any) -> None:
        raise EngineError("the logits of the window are not finite")

    monkeypatch.setattr(RowModel, "window", fails)
    with pytest.raises(EngineError, match="not finite"):
        record_routing(tiny_model, settings(), PROMPTS, raw=True)
