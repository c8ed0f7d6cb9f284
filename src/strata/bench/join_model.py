"""An engine for the benches of joining prompts: a model from files, loaded as `strata serve` does it.

Knows what a scheduler must know of it; runs nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from strata.bench.join_modes import Served
from strata.build import load_model
from strata.engine.engine import TokenEngine
from strata.engine.stage_model import StageModel
from strata.settings import EngineSettings
from strata.types import ProgressCallback


@dataclass(frozen=True)
class JoinEngine:
    """An engine with empty slots."""

    engine: TokenEngine
    served: Served
    settings: EngineSettings
    name: str
    device: str
    notices: tuple[str, ...] = ()


def load_engine(
    model: Path | None, settings: EngineSettings, on_progress: ProgressCallback | None = None
) -> JoinEngine:
    """Of a model directory or GGUF file; the shipped model if none is given. Raises as `load_model`."""
    loaded = load_model(model, settings, on_progress)
    engine = loaded.engine
    device = str(engine.model.stage.device) if isinstance(engine.model, StageModel) else "cpu"
    served = Served(loaded.slots, engine.chunk_rows, loaded.groups, loaded.is_piped)
    return JoinEngine(engine, served, settings, loaded.directory.name, device, loaded.notices)
