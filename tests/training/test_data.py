"""Batches of the trainer: only answers are targets in chats, every token is one in manuals. Knows no model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from training.data import DictionaryRows, ManualRows, Mixture
from training.dictionary import QUESTION_TEMPLATES, Entry
from training.prepare import dictionary_pieces, write_dictionary

POCKET = Path(__file__).parents[2] / "src/strata/models_shipped/pocket"
ENTRIES = [
    Entry("harbour", 0, "a sheltered port where ships can take on or discharge cargo"),
    Entry("well-being", 0, "a contented state"),
    Entry("though", 3, "(postpositive) however"),
    Entry("keep", 1, "continue a certain state, condition, or activity"),
]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `training.prepare` leaves, of four words and two small token streams."""
    made = tmp_path_factory.mktemp("corpus")
    tokenizer = Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    (made / "tokenizer.json").write_bytes((POCKET / "tokenizer.json").read_bytes())
    write_dictionary(made / "dictionary.npz", ENTRIES, dictionary_pieces(tokenizer, ENTRIES))
    np.save(made / "manuals.npy", np.arange(1000, dtype=np.uint16))
    np.save(made / "further.npy", np.arange(4000, 5000, dtype=np.uint16))
    return made


def marked_runs(weight: torch.Tensor) -> list[tuple[int, int]]:
    """(first, last + 1) of every stretch of targets in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], weight.numpy(), [0]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def test_only_answers_are_targets(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    answers = {entry.answer + "<|im_end|>\n" for entry in ENTRIES}
    questions = {template.question(entry.word) for template in QUESTION_TEMPLATES for entry in ENTRIES}
    tokens, weight = DictionaryRows(folder, CPU, seed=1).take(rows=12, length=256)
    seen, with_system = set(), 0
    for row, marks in zip(tokens, weight, strict=True):
        asked_from = 0
        for first, last in marked_runs(marks):
            asked = tokenizer.decode(row[asked_from:first].tolist(), skip_special_tokens=False)
            assert asked.rpartition("<|im_start|>user\n")[2].removesuffix("<|im_end|>\n<|im_start|>assistant\n") in (
                questions
            )
            with_system += "<|im_start|>system\n" in asked
            if last < len(row):  # the last answer of a row may be cut off
                seen.add(tokenizer.decode(row[first:last].tolist(), skip_special_tokens=False))
            asked_from = last
    assert seen == answers
    assert with_system > 0


def test_every_headword_comes_before_one_comes_again(folder: Path) -> None:
    rows = DictionaryRows(folder, CPU, seed=3)
    rows._refill()
    rows._refill()
    words = [word for word, _ in rows._queue]
    assert sorted(words[: len(ENTRIES)]) == sorted(words[len(ENTRIES) :]) == list(range(len(ENTRIES)))


def test_an_epoch_covers_the_manuals_once(folder: Path) -> None:
    rows = ManualRows(folder / "manuals.npy", CPU, seed=2)
    crops = rows.take(8, 100)
    assert crops.shape == (8, 102)
    assert torch.equal(crops - crops[:, :1], torch.arange(102).expand(8, -1))  # each a piece of the text, in order
    assert len({int(first) % 100 for first in crops[:, 0]}) == 1  # one phase, different places
    assert len(set(crops[:, 0].tolist())) == 8


def test_a_mixture_has_its_shares_and_dropout_on_manuals_only(folder: Path) -> None:
    streams = [ManualRows(folder / f"{name}.npy", CPU, seed=4) for name in ("manuals", "further")]
    batch = Mixture(*streams, DictionaryRows(folder, CPU, seed=4), 0.3, 0.2).batch(rows=10, length=64, drop=0.1)
    assert batch.tokens.shape == batch.weight.shape == (10, 66)
    assert (batch.tokens[:3] < 1000).all() and ((batch.tokens[3:5] >= 4000) & (batch.tokens[3:5] < 5000)).all()
    assert (batch.weight[:5] == 1).all()
    assert 0 < batch.weight[5:].mean() < 1
    assert torch.equal(batch.drop, torch.tensor([0.1] * 5 + [0.0] * 5))
