"""The models of the matrix: one of each kind of state, and the small trained one."""

from pathlib import Path

import pytest

from strata.build import load_model
from strata.cli.synth import synth
from strata.models.base import LanguageModel
from strata.settings import EngineSettings

FAMILIES = ("qwen4_exp", "qwen3_next", "llama")  # indexed attention and drafts; delta nets; attention alone


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LanguageModel]:
    """By family, with random weights; drafts are loaded where there are some."""
    folder = tmp_path_factory.mktemp("same_answer")
    return {family: _loaded(family, folder / family) for family in FAMILIES}


@pytest.fixture(scope="session")
def pocket() -> LanguageModel:
    """The model that ships with strata."""
    return load_model(None, EngineSettings(threads=1, drafts=1)).engine.model


def _loaded(family: str, folder: Path) -> LanguageModel:
    synth(family, folder, fields=["vocab_size=8192"])
    return load_model(folder, EngineSettings(threads=1, drafts=1)).engine.model
