"""Settings: who wins, what is refused and with which words, and that the docs say what the code says."""

import ast
from pathlib import Path

import pytest

from strata.errors import SettingsError
from strata.settings import EngineSettings, GenerationSettings, Settings, profiles_folder, resolve
from strata.settings_page import as_markdown
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
        ({}, {"STRATA_PIPED_READ_PIECE": "0"}, ["piped_read_piece", "'0'", "STRATA_PIPED_READ_PIECE", "at least 1"]),
        ({}, {"STRATA_PIPED_READ_PIECE": "-5"}, ["piped_read_piece", "'-5'", "whole number of at least 1"]),
        ({"read_mode": "pieces"}, {}, ["read_mode is pieces", "piped_read_piece", "16384"]),
        ({"read_mode": "rows"}, {}, ["read_mode", "'rows'", "whole, pieces, layers"]),
        (
            {},
            {"STRATA_PIPED_DECODE_MIN_MS": "500", "STRATA_PIPED_DECODE_MAX_MS": "400"},
            ["piped_decode_min_ms is 500", "piped_decode_max_ms 400", "must not be above"],
        ),
        ({}, {"STRATA_BATCH_DECODE_SHARE": "-1"}, ["decode_share", "'-1'", "STRATA_BATCH_DECODE_SHARE", "from 0"]),
        (
            {},
            {"STRATA_BATCH_DECODE_SHARE": "0.5", "STRATA_DECODE_SHARE": "1"},
            ["STRATA_DECODE_SHARE is '1'", "STRATA_BATCH_DECODE_SHARE is '0.5'", "set one of them"],
        ),
        ({"groups": 0}, {}, ["groups", "0", "auto or a whole number from 1 to 32"]),
        ({"groups": "some"}, {}, ["groups", "'some'", "auto or a whole number"]),
        ({"groups": 3, "slots": 2}, {}, ["groups is 3", "2 slots", "at most 2 groups"]),
    ],
)
def test_wrong_value_is_named_with_what_works(flags: dict, environment: dict, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(flags, environment=environment)
    for word in words:
        assert word in str(caught.value)


def test_a_setting_with_two_variables_is_said_by_either_or_by_both_alike() -> None:
    for said in (
        {"STRATA_BATCH_DECODE_SHARE": "0.25"},
        {"STRATA_DECODE_SHARE": "0.25"},
        {"STRATA_DECODE_SHARE": "0.25", "STRATA_BATCH_DECODE_SHARE": "0.25"},
        {"STRATA_DECODE_SHARE": "", "STRATA_BATCH_DECODE_SHARE": "0.25"},
    ):
        found = resolve(environment=said)
        assert (found.engine.decode_share, found.said) == (0.25, {"decode_share"})
    both = {"STRATA_DECODE_SHARE": "1", "STRATA_BATCH_DECODE_SHARE": "2"}
    assert resolve({"decode_share": 3}, environment={"STRATA_BATCH_DECODE_SHARE": "2"}).engine.decode_share == 3
    with pytest.raises(SettingsError):
        resolve({"decode_share": 3}, environment=both)


def test_groups_are_as_many_as_there_is_work_and_room_for() -> None:
    assert [EngineSettings().groups_of(slots, usual=2) for slots in (1, 2, 6)] == [1, 2, 2]
    assert resolve(environment={"STRATA_GROUPS": "3"}).engine.groups_of(4, usual=1) == 3
    assert resolve({"groups": "auto"}, environment={}).engine.groups == "auto"
    with pytest.raises(SettingsError, match="groups is 3 and there are 2 slots"):
        EngineSettings(groups=3).groups_of(2, usual=1)


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
