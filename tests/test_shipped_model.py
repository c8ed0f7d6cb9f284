"""The model that ships with strata: it answers, drafts change nothing, it is small, and transformers agrees with it.

Knows the files in models_shipped/pocket; how they were made is in training/.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from strata import Engine, SamplingOptions
from strata.models_shipped import default_path
from strata.text.tokenizer import load_tokenizer
from strata.weights.safetensors import open_model

MOST_BYTES = 24 << 20
MOST_BYTES_OF_A_FILE = 16 << 20
LIMIT_FLOAT64 = 1e-8
QUESTION = [{"role": "user", "content": "What does harbour mean?"}]
GLOSS = "harbour (noun): a sheltered port where ships can take on or discharge cargo"


def folder() -> Path:
    return default_path()


def test_the_folder_is_small_enough_for_a_repository() -> None:
    sizes = {path.name: path.stat().st_size for path in folder().iterdir()}
    assert sum(sizes.values()) < MOST_BYTES
    assert max(sizes.values()) < MOST_BYTES_OF_A_FILE


def test_it_answers_with_the_gloss_whatever_is_drafted() -> None:
    continuations = []
    for drafts in (0, 3):
        with Engine(drafts=drafts) as engine:
            reply = engine.chat(QUESTION)
            assert reply.text() == GLOSS
            assert reply.finished is not None
            usage = reply.finished.usage
            assert (usage.accepted_drafts > usage.windows) == (drafts > 0)  # known by heart: most drafts are right
            options = SamplingOptions(max_tokens=32)
            continuations.append(engine.generate("The following example shows how to", options).text())
    assert continuations[0] == continuations[1]


def test_its_words_are_listed_in_order_and_are_askable() -> None:
    words = (folder() / "dictionary.txt").read_text("utf-8").splitlines()
    assert len(words) == len(set(words)) == 20_480
    assert words == sorted(words)
    assert {"harbour", "pier", "harbor"} <= set(words)


def test_licences_of_its_data_travel_with_it() -> None:
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in (folder() / "LICENSE-wordnet.txt").read_text("utf-8")
    card = (folder() / "CARD.md").read_text("utf-8")
    for package in ("wordnet-base", "python3.11-doc", "postgresql-doc-15", "sqlite3-doc", "perl-doc"):
        assert package in card
    pictures = [name.split(")")[0] for name in card.split("](")[1:] if ".png)" in name]
    assert pictures and all((folder() / name).is_file() for name in pictures)


@cache
def long_text() -> tuple[int, ...]:
    """A chat and a manual's sentences: more rows than the indexer's budget of 256, an end-of-text inside."""
    tokenizer = load_tokenizer(folder())
    chat = tokenizer.encode_chat([*QUESTION, {"role": "assistant", "content": GLOSS}], add_generation_prompt=False)
    assert tokenizer.chat_template is not None
    tokenizer.chat_template.close()
    manual = (
        "The `SELECT` statement is used to query the database. The result of a `SELECT` is zero or more rows of data "
        "where each row has a fixed number of columns. If the value is a string, it is converted to a number first. "
    )
    return (*chat, 0, *tokenizer.encode(manual * 6))


def test_its_logits_equal_those_of_transformers() -> None:
    """In float64, eager, with the block-FP8 weights as this package reads them."""
    pytest.importorskip("transformers.models.qwen4_exp")
    from tests.oracle import transformers_model
    from tests.oracle.compare import load, read_all
    from tests.oracle.configs import Case

    config = json.loads((folder() / "config.json").read_text("utf-8"))
    case = Case("qwen4_exp", 0, config, list(long_text()))
    assert len(case.token_ids) > case.text_config["indexer_budget"] + 44 and 0 in case.token_ids[1:-100]
    source = open_model(folder())
    oracle = transformers_model.build(case)
    tensors = transformers_model.canonical_tensors(oracle, case)
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensor.copy_(source.tensor(name, torch.float64))
    expected, _ = transformers_model.logits_and_margins(oracle, case)
    logits = read_all(load(case, tensors, torch.float64), case.token_ids)
    assert expected.std() > 1
    assert (logits - expected).abs().max() <= LIMIT_FLOAT64
