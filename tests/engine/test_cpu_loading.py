"""What a model takes on the CPU, by how many threads, in which form."""

import math
from pathlib import Path

import pytest

from strata.engine.cpu_loading import fitting_threads, held_sizes
from strata.hardware import CpuFacts
from strata.models.families import family_of
from strata.native import library
from strata.settings import EngineSettings
from strata.weights.opening import open_model


@pytest.mark.parametrize(("width", "threads"), [(256, 1), (1023, 1), (1024, 5), (4096, 5)])
def test_narrow_models_get_one_thread(monkeypatch: pytest.MonkeyPatch, width: int, threads: int) -> None:
    monkeypatch.setattr("strata.engine.cpu_loading.read_cpu", lambda: CpuFacts("any", 6, 12, 5, ()))
    assert fitting_threads(width) == threads


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_weights_are_counted_as_they_are_held(tiny_model: Path) -> None:
    source = open_model(tiny_model)
    family = family_of(source.config)
    shapes = family.expected_tensors(family.parse_config(source.config))
    stored = sum(map(source.stored_bytes, shapes))
    packed, tensors = (
        sum(held_sizes(source, shapes, EngineSettings(cpu_path=path)).values()) for path in ("native", "torch")
    )
    assert stored <= packed < 1.05 * stored  # vectors grow to float32
    assert tensors == 4 * sum(map(math.prod, shapes.values()))
