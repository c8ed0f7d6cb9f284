"""Flags are the settings: each has one, with its type, and what was not said stays unsaid."""

from dataclasses import fields

import pytest

from strata.cli.app import run
from strata.cli.flags import EngineFlags, GenerationFlags, said
from strata.settings import EngineSettings, GenerationSettings, resolve


def test_every_setting_has_a_flag() -> None:
    for flags, settings in ((EngineFlags, EngineSettings), (GenerationFlags, GenerationSettings)):
        assert [field.name for field in fields(flags)] == [field.name for field in fields(settings)]
        assert all(field.default is None for field in fields(flags))


def test_what_was_not_said_leaves_the_defaults() -> None:
    assert resolve(said(None, GenerationFlags()), environment={}) == resolve(environment={})


def test_what_was_said_reaches_the_settings() -> None:
    found = resolve(said(EngineFlags(drafts=2), GenerationFlags(temperature=0.5)), environment={})
    assert (found.engine.drafts, found.generation.temperature) == (2, 0.5)


def test_sections_may_stay_unsaid_where_pydantic_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line parser then lets pydantic check every default against its type."""
    pytest.importorskip("pydantic")
    assert run(["generate", "hi", "--model", "nowhere"]) == 2
    assert capsys.readouterr().err == "error: there is no model directory or GGUF file nowhere\n"
