"""The shipped model says the same whether C++ or torch computes its windows, drafts or not."""

import pytest

from strata import Engine, SamplingOptions
from strata.native import library
from strata.settings import resolve

LONG = "The harbour is a place where ships may anchor. A lantern gives light at night; a river runs to the sea. "
PROMPTS = (
    "The following example shows how to",
    "harbour (noun):",
    "To list all files in a directory, use",
    "A lantern is",
    LONG * 10,  # 331 tokens: past the indexer's budget of 256
    LONG * 20,  # 661 tokens: the gathered cells and the keys both have several splits
)


def replies(path: str, drafts: int) -> list[str]:
    options = SamplingOptions(max_tokens=12, ignore_eos=True)
    with Engine(settings=resolve({"cpu_path": path, "drafts": drafts})) as engine:
        return [engine.generate(prompt, options).text() for prompt in PROMPTS]


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_both_paths_say_the_same() -> None:
    expected = replies("torch", 0)
    assert replies("native", 0) == expected
    assert replies("native", 2) == expected


def test_without_the_library_torch_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_library", lambda: None)
    with Engine(settings=resolve({"cpu_path": "native"})) as engine:
        assert engine.generate("harbour", SamplingOptions(max_tokens=2)).text()
