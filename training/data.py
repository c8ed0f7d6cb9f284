"""Batches of token rows: crops of the manuals, and dictionary chats packed whole.

Knows the files that training.prepare writes; knows no model.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.language import Batch

END_OF_TEXT = 0
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a pocket dictionary.",
    "Answer briefly.",
    "You are an expert in technical documentation. Answer the user's questions clearly and briefly.",
    "You are Strata, a small model. Give the meaning of the word that the user asks for.",
)


class ManualRows:
    """Crops of one token stream; every epoch covers all of it once, from a fresh phase."""

    def __init__(self, path: Path, device: torch.device, seed: int) -> None:
        self._tokens = torch.from_numpy(np.load(path).astype(np.int64)).to(device)
        self._random = np.random.default_rng(seed)
        self._starts: list[int] = []
        self._length = 0

    def take(self, rows: int, length: int) -> Tensor:
        """-> [rows, length + 2] int64."""
        if length != self._length:
            self._starts, self._length = [], length
        while len(self._starts) < rows:
            phase = int(self._random.integers(length))
            starts = np.arange(phase, len(self._tokens) - length - 2, length)
            self._starts.extend(self._random.permutation(starts).tolist())
        taken, self._starts = self._starts[:rows], self._starts[rows:]
        starts_here = torch.tensor(taken, device=self._tokens.device).unsqueeze(1)
        return self._tokens[starts_here + torch.arange(length + 2, device=self._tokens.device)]


class DictionaryRows:
    """Chats of every headword in turn, each behind an end-of-text; only answers count as targets."""

    CONTINUED = 0.5  # share of chats that follow the one before as its next turn
    WITH_SYSTEM = 0.15  # share of conversations that open with a system prompt

    def __init__(self, folder: Path, device: torch.device, seed: int) -> None:
        self._device = device
        self._random = np.random.default_rng(seed)
        files = dict(np.load(folder / "dictionary.npz"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        turns = [f"<|endoftext|><|im_start|>system\n{prompt}<|im_end|>\n" for prompt in SYSTEM_PROMPTS]
        self._systems = [np.array(tokenizer.encode(turn).ids, dtype=np.uint16) for turn in turns]
        self.template_weights = files["template_weights"]
        self.headwords = len(files["part_of_speech"])
        self._chats = [self._compose(files, template) for template in range(len(self.template_weights))]
        self._queue: list[tuple[int, int]] = []

    @staticmethod
    def _compose(files: dict[str, np.ndarray], template: int) -> list[tuple[np.ndarray, int]]:
        """(ids of a chat behind end-of-text, index of its answer) for every headword."""

        def pieces(name: str) -> list[np.ndarray]:
            return np.split(files[f"{name}_ids"], files[f"{name}_offsets"][1:-1])

        before, after = pieces("question_before")[template], pieces("question_after")[template]
        asked = pieces("word_after_blank" if files["template_word_after_blank"][template] else "word_at_start")
        words, glosses, middles = pieces("word_at_start"), pieces("gloss"), pieces("answer_middle")
        start = np.array([END_OF_TEXT], dtype=np.uint16)
        end = files["answer_end_ids"]
        chats = []
        for word, part in enumerate(files["part_of_speech"]):
            question = [start, before, asked[word], after]
            answer = [words[word], middles[part], glosses[word], end]
            chats.append((np.concatenate(question + answer), sum(map(len, question))))
        return chats

    def _refill(self) -> None:
        templates = self._random.choice(len(self._chats), self.headwords, p=self.template_weights)
        self._queue.extend(zip(self._random.permutation(self.headwords).tolist(), templates.tolist(), strict=True))

    def take(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """-> tokens [rows, length + 2] int64, weight of each token as a target [rows, length + 2] float32."""
        tokens = np.zeros((rows, length + 2), dtype=np.int64)
        weight = np.zeros((rows, length + 2), dtype=np.float32)
        for row in range(rows):
            used = 0
            while used < length + 2:
                if not self._queue:
                    self._refill()
                chat, answer = self._opened(*self._chats[self._queue[-1][1]][self._queue[-1][0]], follows=used > 0)
                room = min(len(chat), length + 2 - used)
                tokens[row, used : used + room] = chat[:room]
                weight[row, used + min(answer, room) : used + room] = 1
                used += room
                if room == len(chat):
                    self._queue.pop()
        return torch.from_numpy(tokens).to(self._device), torch.from_numpy(weight).to(self._device)

    def _opened(self, chat: np.ndarray, answer: int, follows: bool) -> tuple[np.ndarray, int]:
        """A chat as a next turn (no end-of-text before it), or opening a conversation, perhaps after a system turn."""
        if follows and self._random.random() < self.CONTINUED:
            return chat[1:], answer - 1
        if self._random.random() < self.WITH_SYSTEM:
            system = self._systems[self._random.integers(len(self._systems))]
            return np.concatenate((system, chat[1:])), answer - 1 + len(system)
        return chat, answer

    def questions(self, template: int, words: np.ndarray, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of whole chats of `words` to measure on: tokens, weight, and the word's index + 1 at answer tokens."""
        tokens = np.zeros((rows, length + 2), dtype=np.int64)
        owner = np.zeros((rows, length + 2), dtype=np.int64)
        row = used = 0
        for index, word in enumerate(words):
            chat, answer = self._chats[template][word]
            if used + len(chat) > length + 2:
                row, used = row + 1, 0
            if row == rows:
                break
            tokens[row, used : used + len(chat)] = chat
            owner[row, used + answer : used + len(chat)] = index + 1
            used += len(chat)
        owners = torch.from_numpy(owner).to(self._device)
        return torch.from_numpy(tokens).to(self._device), (owners > 0).float(), owners


@dataclass(frozen=True)
class Mixture:
    """Where the rows of a batch come from: shares of manuals and of further manuals; the rest is dictionary chats."""

    manuals: ManualRows
    further: ManualRows
    dictionary: DictionaryRows
    manual_share: float
    further_share: float

    def batch(self, rows: int, length: int, drop: float) -> Batch:
        """Manual rows come first, with dropout `drop`; chats come last, without."""
        counts = [max(1, round(rows * share)) for share in (self.manual_share, self.further_share)]
        texts = torch.cat((self.manuals.take(counts[0], length), self.further.take(counts[1], length)))
        chats, weight = self.dictionary.take(rows - sum(counts), length)
        drops = torch.zeros(rows, device=texts.device)
        drops[: len(texts)] = drop
        weights = torch.cat((torch.ones_like(texts, dtype=torch.float32), weight))
        return Batch(torch.cat((texts, chats)), weights, drops)
