"""Where settings are said: which file, which variable, and what of a file is refused with which words."""

from pathlib import Path

import pytest

from strata.errors import SettingsError
from strata.settings import resolve
from strata.settings_sources import read_settings_file


def test_no_file_that_nobody_asked_for_says_nothing(tmp_path: Path) -> None:
    assert read_settings_file(None, False, {}) == read_settings_file(tmp_path / "none.toml", False, {}) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[engine]\nthread = 2\n", ["thread", "[engine]", "did you mean threads"]),
        ("[motor]\nthreads = 2\n", ["motor", "engine, generation"]),
        ("threads = \n", ["not TOML"]),
        ("[engine]\nthreads = true\n", ["threads", "True", "settings file"]),
    ],
)
def test_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        resolve(environment={}, file=file)
    for word in words:
        assert word in str(caught.value)


def test_own_file_in_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(SettingsError, match=r"settings\.toml cannot be read: Permission denied"):
        resolve(environment={"XDG_CONFIG_HOME": str(tmp_path)})


def test_missing_named_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        resolve(environment={}, file=tmp_path / "none.toml")
