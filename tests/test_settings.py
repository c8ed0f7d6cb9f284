"""Settings: who wins, what is refused and with which words, and that the docs say what the code says."""

import ast
from pathlib import Path

import pytest

from strata.errors import SettingsError
from strata.settings import GenerationSettings, Settings, as_markdown, profiles_folder, resolve
from tests.house.source_tree import ROOT, modules


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[engine]\nthreads = 3\nchunk_rows = 128\n[generation]\ntop_k = 7\n")
    environment = {"STRATA_THREADS": "4", "STRATA_TOP_K": "8"}
    found = resolve({"top_k": 9, "threads": None}, environment=environment, file=file)
    assert found.generation.top_k == 9  # flag
    assert found.engine.threads == 4  # environment: a flag that was not given does not count
    assert found.engine.chunk_rows == 128  # file
    assert found.generation.top_p == GenerationSettings().top_p  # default


def test_nothing_said_gives_the_defaults() -> None:
    assert resolve(environment={}) == Settings()


def test_what_was_said_is_known_wherever_it_was_said_and_whatever_its_value(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[generation]\ntop_k = 0\n")
    found = resolve({"temperature": 0.0, "seed": None}, environment={"STRATA_THREADS": "4"}, file=file)
    assert found.said == {"top_k", "temperature", "threads"}


def test_users_own_file_is_read_and_the_named_one_wins(tmp_path: Path) -> None:
    own = tmp_path / "strata" / "settings.toml"
    own.parent.mkdir()
    own.write_text("[engine]\nthreads = 3\n")
    named = tmp_path / "named.toml"
    named.write_text("[engine]\nthreads = 5\n")
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert resolve(environment=environment).engine.threads == 3
    assert resolve(environment=environment | {"STRATA_CONFIG": str(named)}).engine.threads == 5


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"threads": 0}, {}, ["threads", "0", "--threads", "from 1 to 1024"]),
        ({}, {"STRATA_THREADS": "many"}, ["threads", "'many'", "STRATA_THREADS", "whole number"]),
        ({"dtype": "int3"}, {}, ["dtype", "'int3'", "float32"]),
        ({"chunk_rows": 100}, {}, ["chunk_rows", "100", "multiple of 64"]),
        ({"top_p": 0.0}, {}, ["top_p", "above 0", "at most 1"]),
        ({"temperature": float("nan")}, {}, ["temperature", "nan"]),
        ({"threads": 1.5}, {}, ["threads", "1.5"]),
        ({"threads": float("inf")}, {}, ["threads", "inf"]),
        ({"thread": 2}, {}, ["thread", "did you mean threads"]),
        ({"cache_gib": -1}, {}, ["cache_gib", "-1", "from 0 to 4096"]),
        ({"pcie_share": 1.1}, {}, ["pcie_share", "1.1", "from 0 to 1"]),
    ],
)
def test_wrong_value_is_named_with_what_works(flags: dict, environment: dict, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(flags, environment=environment)
    for word in words:
        assert word in str(caught.value)


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


def test_profiles_are_kept_in_the_users_cache() -> None:
    assert profiles_folder({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/strata/profiles")
    assert profiles_folder({}).parts[-3:] == (".cache", "strata", "profiles")


def test_docs_are_those_of_the_code() -> None:
    assert (ROOT / "docs" / "settings.md").read_text("utf-8") == as_markdown(), "run `make settings`"


def test_only_settings_reads_the_environment() -> None:
    for module, path in modules().items():
        if module != "settings":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                named = isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
                assert not named, f"strata.{module} reads the environment, line {node.lineno}"
