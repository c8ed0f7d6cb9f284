"""A path is a directory or a GGUF file, and what is neither is refused with a sentence that says what to give."""

from pathlib import Path

import pytest

from strata import models_shipped
from strata.errors import ModelError
from strata.weights.opening import has_weights, open_model


def test_a_directory_opens_and_what_is_neither_is_refused(tmp_path: Path) -> None:
    shipped = models_shipped.default_path()
    assert has_weights(shipped)
    assert "model.embed_tokens.weight" in open_model(shipped).names()
    (tmp_path / "notes.txt").write_text("hello")
    assert not has_weights(tmp_path / "notes.txt")
    with pytest.raises(ModelError, match="give a GGUF file, or the directory"):
        open_model(tmp_path / "notes.txt")
    with pytest.raises(ModelError, match="no model directory"):
        open_model(tmp_path / "none.gguf")
