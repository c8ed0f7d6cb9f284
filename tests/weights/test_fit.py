"""A tensor that is missing or of another size is refused before anything is read, in the words of its kind of files."""

from pathlib import Path

import pytest

from strata.build import load_model
from strata.errors import WeightFileError
from strata.models.families import family_of
from strata.settings import EngineSettings
from strata.weights.fit import require_fit, require_shapes
from strata.weights.opening import open_model
from tests.weights import gguf_models

NAME = "model.layers.1.self_attn.o_proj.weight"
ORIGINS = {"directory": "config.json", "gguf": "the file's metadata"}


def path_of(kind: str) -> Path:
    return gguf_models.directory("llama") if kind == "directory" else gguf_models.gguf("llama", "Q8_0")


@pytest.mark.parametrize("kind", ORIGINS)
def test_what_does_not_fit_is_told_with_what_asked_for_it(kind: str) -> None:
    source = open_model(path_of(kind))
    family = family_of(source.config)
    shapes = family.expected_tensors(family.parse_config(source.config))
    require_fit(source, shapes)
    found, where = list(shapes[NAME]), f"{path_of(kind)}: "
    with pytest.raises(WeightFileError) as caught:
        require_fit(source, shapes | {NAME: (3, 5)})
    assert str(caught.value) == f"{where}tensor {NAME} has the shape {found}, {ORIGINS[kind]} means [3, 5]"
    more = shapes | {"model.layers.9.a": (1,), "model.layers.9.b": (1,)}
    with pytest.raises(WeightFileError) as caught:
        require_fit(source, more)
    told = f"{ORIGINS[kind]} asks for tensor model.layers.9.a and 1 more, the files do not hold it"
    assert str(caught.value) == where + told
    require_shapes(source, more)


def test_a_wrong_size_in_a_gguf_header_is_told_before_weights_are_read(tmp_path: Path) -> None:
    file, name = tmp_path / "wrong.gguf", b"blk.1.attn_output.weight"
    content = bytearray(path_of("gguf").read_bytes())
    rows = content.index(name) + len(name) + 4 + 8  # behind the number of sizes and the columns
    wanted = int.from_bytes(content[rows : rows + 8], "little")
    content[rows : rows + 8] = (wanted // 2).to_bytes(8, "little")
    file.write_bytes(content)
    with pytest.raises(WeightFileError, match=rf"^{file}: tensor {NAME} .*, the file's metadata means \[{wanted}, "):
        load_model(file, EngineSettings(threads=1))
