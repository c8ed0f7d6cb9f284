"""Measures the shipped model with the product's own engine: compression, glosses, drafts, routing, size.

Knows what is measured and how it is counted; knows neither the card's text nor its pictures. Reads the held-out text
and the answers that `training.prepare` wrote, and the installed model; uses nothing of the code that trained it.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import strata
from strata import Engine, Generation, SamplingOptions, TextPiece, Usage
from strata.models.base import DraftRows, LogitRows, Segment
from strata.models.families import family_of
from strata.models.qwen4_exp import Qwen4Exp
from strata.text.tokenizer import load_tokenizer
from strata.weights.safetensors import open_model

END_OF_TEXT = 0
WINDOW = 8192  # positions that the model was trained to
OVERLAP = 2048  # a later window of a long document begins this many tokens before those it counts
CHUNK = 512  # rows of one read, so that logits of a whole window never stand in memory
SEED = 20_261_130
WORDS = 500
SIMILAR = 0.8  # normalised edit similarity from which a gloss counts as recovered
PASSAGES = 128
CONTINUATIONS = (  # name among the metrics, tokens, temperature
    ("manual_windows", 96, 0.0),
    ("manual_windows_first_32", 32, 0.0),
    ("manual_windows_temperature_0.7", 96, 0.7),
)
REPEATED_RUN = 8  # a continuation in which a run of this many tokens comes twice may go round in circles
DEPTH = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Compression:
    """Held-out manuals; text tokens only (an end-of-text is context, never a target)."""

    documents: int
    windows: int
    tokens: int
    bytes: int
    bits_per_byte: float
    bits_per_token: float
    per_manual: dict[str, float]  # bits per byte by Debian package


@dataclass(frozen=True)
class Glosses:
    """Random words of the list, asked "What does WORD mean?" through `Engine.chat`, greedy."""

    words: int
    recovered: float  # share with similarity >= SIMILAR
    exact: float  # share whose whole answer is the trained one, letter for letter
    mean_similarity: float
    unlike: list[list[str]]  # [answer wanted, answer given] of those not recovered


@dataclass(frozen=True)
class Windows:
    """Greedy replies at one draft depth. A reply's first token is drawn from the prompt, before any window."""

    replies: int
    completion_tokens: int
    windows: int
    tokens_per_window: float  # completion_tokens / windows
    without_first: float  # (completion_tokens - replies) / windows
    accepted_drafts: float  # share of the drafted tokens
    going_round: float  # share of replies in which a run of REPEATED_RUN tokens comes twice
    tokens_per_window_others: float | None  # completion_tokens / windows of the replies without such a run


@dataclass(frozen=True)
class Routing:
    """How often each expert is chosen, as a multiple of its fair share; the draft layer is the last one."""

    manuals: list[list[float]]  # [layers][experts]
    dictionary: list[list[float]]
    manual_rows: int
    dictionary_rows: int


@dataclass(frozen=True)
class Corpus:
    """What `training.prepare` left for measuring."""

    documents: list[list[int]]  # each begins with END_OF_TEXT
    paths: list[str]  # package/path, in the same order; empty where the list of paths is not there
    bytes: int
    answers: dict[str, str]  # word -> answer


def read_corpus(folder: Path, text: Path) -> Corpus:
    ids = np.load(folder / "manuals_heldout.npy").astype(np.int64)
    starts = np.flatnonzero(ids == END_OF_TEXT)
    documents = [piece.tolist() for piece in np.split(ids, starts[1:])]
    facts = json.loads((folder / "manuals_heldout_bytes.json").read_text())
    assert len(documents) == facts["documents"], "the held-out file and its facts do not belong together"
    answers = {entry["word"]: entry["answer"] for entry in json.loads((folder / "answers.json").read_text("utf-8"))}
    paths_file = text / "manuals_heldout.list"
    paths = paths_file.read_text().splitlines() if paths_file.is_file() else []
    return Corpus(documents, paths if len(paths) == len(documents) else [], facts["bytes"], answers)


def load_shipped(directory: Path) -> Qwen4Exp:
    """The model as the engine loads it, for what no text interface gives: logits and routing."""
    source = open_model(directory)
    family = family_of(source.config)
    model = family.load(family.parse_config(source.config), source, torch.float32)
    assert isinstance(model, Qwen4Exp)
    return model


def windows_of(document: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
    """(tokens of a window, index of its first counted token): every token but the first counts exactly once."""
    start = 0
    while start == 0 or start + OVERLAP < len(document):
        yield document[start : start + WINDOW], OVERLAP if start else 1
        start += WINDOW - OVERLAP


def nats(model: Qwen4Exp, tokens: Sequence[int], counted_from: int) -> float:
    """Sum of -ln p(token | the tokens before it) over tokens[counted_from:]."""
    state, ids, total = model.new_state(), torch.tensor(tokens), 0.0
    for start in range(0, len(ids) - 1, CHUNK):
        inputs = ids[start : min(start + CHUNK, len(ids) - 1)]
        logits = model.read([Segment(state, inputs)], LogitRows.ALL).logits.double()
        targets = ids[start + 1 : start + 1 + len(inputs)]
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        total += float(losses[max(0, counted_from - start - 1) :].sum())
    return total


def measure_manuals(model: Qwen4Exp, corpus: Corpus, texts: Sequence[str], say: Say) -> Compression:
    """Every document from its beginning; those over WINDOW tokens in windows that overlap."""
    sizes = [len(text.encode()) for text in texts]
    assert sum(sizes) == corpus.bytes, "the held-out text was encoded with another tokenizer than the shipped one"
    total, windows, tokens = 0.0, 0, 0
    by_manual: dict[str, tuple[float, int]] = {}
    for number, document in enumerate(corpus.documents):
        cost = 0.0
        for piece, counted_from in windows_of(document):
            cost += nats(model, piece, counted_from)
            windows += 1
        total, tokens = total + cost, tokens + len(document) - 1
        if corpus.paths:
            name = corpus.paths[number].partition("/")[0]
            before = by_manual.get(name, (0.0, 0))
            by_manual[name] = before[0] + cost, before[1] + sizes[number]
        if (number + 1) % 8 == 0 or number + 1 == len(corpus.documents):
            read = sum(sizes[: number + 1])
            say(f"manuals: {number + 1} documents, {tokens} tokens, {total / math.log(2) / read:.4f} bits per byte")
    per_manual = {name: cost / math.log(2) / size for name, (cost, size) in sorted(by_manual.items())}
    bits = total / math.log(2)
    return Compression(len(sizes), windows, tokens, corpus.bytes, bits / corpus.bytes, bits / tokens, per_manual)


def edit_distance(a: str, b: str) -> int:
    """Levenshtein: insertions, deletions and replacements of single characters."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]


def similarity(a: str, b: str) -> float:
    """1 - Levenshtein distance / length of the longer one."""
    return 1 - edit_distance(a, b) / max(len(a), len(b), 1)


def gloss_of(answer: str) -> str:
    """The gloss alone: what stands behind `harbour (noun): `; the whole answer if it has no such head."""
    head, mark, gloss = answer.partition("): ")
    return gloss if mark and " (" in head else answer


def repeats_a_run(token_ids: Sequence[int]) -> bool:
    """Whether some run of REPEATED_RUN tokens comes twice."""
    runs = [tuple(token_ids[i : i + REPEATED_RUN]) for i in range(len(token_ids) - REPEATED_RUN + 1)]
    return len(set(runs)) < len(runs)


@dataclass
class ReplyCounts:
    """Adds up usages and tokens of replies."""

    usages: list[Usage]
    rounds: list[bool]

    def add(self, usage: Usage, token_ids: Sequence[int]) -> None:
        self.usages.append(usage)
        self.rounds.append(repeats_a_run(token_ids))

    def summary(self) -> Windows:
        def ratio(usages: Sequence[Usage], minus: int = 0) -> float:
            return sum(u.completion_tokens - minus for u in usages) / sum(u.windows for u in usages)

        others = [usage for usage, goes_round in zip(self.usages, self.rounds, strict=True) if not goes_round]
        return Windows(
            replies=len(self.usages),
            completion_tokens=sum(u.completion_tokens for u in self.usages),
            windows=sum(u.windows for u in self.usages),
            tokens_per_window=ratio(self.usages),
            without_first=ratio(self.usages, minus=1),
            accepted_drafts=sum(u.accepted_drafts for u in self.usages) / sum(u.drafted_tokens for u in self.usages),
            going_round=sum(self.rounds) / len(self.rounds),
            tokens_per_window_others=ratio(others) if others else None,
        )


def random_words(answers: dict[str, str], count: int) -> list[str]:
    return np.random.default_rng(SEED).choice(list(answers), count, replace=False).tolist()


def finished(reply: Generation) -> tuple[str, Usage, list[int]]:
    """The text of a reply, its usage and its tokens without the one that ends it."""
    text, token_ids = "", []
    for event in reply:
        if isinstance(event, TextPiece):
            text += event.text
            token_ids += [] if event.token_id is None else [event.token_id]
    assert reply.finished is not None and reply.finished.error is None
    return text, reply.finished.usage, token_ids


def ask(engine: Engine, word: str) -> tuple[str, Usage, list[int]]:
    """The greedy answer to "What does WORD mean?", its usage and its tokens."""
    question = [{"role": "user", "content": f"What does {word} mean?"}]
    return finished(engine.chat(question, SamplingOptions(max_tokens=96)))


def measure_dictionary(engine: Engine, answers: dict[str, str], say: Say) -> tuple[Glosses, Windows]:
    counts, likeness, exact, unlike = ReplyCounts([], []), [], 0, []
    for number, word in enumerate(random_words(answers, WORDS), 1):
        given, usage, token_ids = ask(engine, word)
        counts.add(usage, token_ids)
        likeness.append(similarity(gloss_of(given), gloss_of(answers[word])))
        exact += given == answers[word]
        if likeness[-1] < SIMILAR:
            unlike.append([answers[word], given])
        if number % 50 == 0:
            say(f"dictionary: {number} words, {number - len(unlike)} glosses recovered, {exact} answers exact")
    share = 1 - len(unlike) / len(likeness)
    return Glosses(len(likeness), share, exact / len(likeness), float(np.mean(likeness)), unlike), counts.summary()


def random_passages(documents: Sequence[Sequence[int]], count: int, least: int, most: int) -> list[list[int]]:
    """Pieces of `least` to `most` tokens, each place of the text equally likely; none holds an end-of-text."""
    random = np.random.default_rng(SEED)
    long = [document[1:] for document in documents if len(document) > most]
    room = np.array([len(document) - most + 1 for document in long], dtype=np.float64)
    passages = []
    for document in random.choice(len(long), count, p=room / room.sum()):
        start = int(random.integers(len(long[document]) - most + 1))
        passages.append(list(long[document][start : start + int(random.integers(least, most + 1))]))
    return passages


def continued(engine: Engine, prompt: Sequence[int], tokens: int, **options: Any) -> tuple[Usage, list[int]]:
    """A continuation of exactly `tokens` tokens, greedy unless said otherwise: an end-of-text does not end it."""
    chosen = SamplingOptions(max_tokens=tokens, ignore_eos=True, **options)
    _, usage, token_ids = finished(engine.generate(prompt, chosen))
    return usage, token_ids


def measure_continuations(
    engine: Engine, documents: Sequence[Sequence[int]], tokens: int, temperature: float, say: Say
) -> Windows:
    counts = ReplyCounts([], [])
    for number, prompt in enumerate(random_passages(documents, PASSAGES, 128, 256), 1):
        counts.add(*continued(engine, prompt, tokens, temperature=temperature, seed=number))
        if number % 32 == 0:
            name = f"continuations of {tokens} tokens at temperature {temperature:g}"
            say(f"{name}: {number}, {counts.summary().tokens_per_window:.3f} tokens per window")
    return counts.summary()


def manuals_repeating(documents: Sequence[Sequence[int]]) -> float:
    """Share of pieces of the manuals themselves, as long as the continuations, in which a run comes twice."""
    tokens = CONTINUATIONS[0][1]
    return sum(map(repeats_a_run, random_passages(documents, 1000, tokens, tokens))) / 1000


def usage_of_experts(model: Qwen4Exp, texts: Sequence[Sequence[int]]) -> tuple[list[list[float]], int]:
    """([layers][experts] choices as a multiple of the fair share, rows read), the draft layer last."""
    experts, ranks = model.config.moe.experts, model.config.moe.experts_per_token
    counts = torch.zeros(model.config.num_layers + 1, experts, dtype=torch.int64)

    def observe(layer: int, expert_ids: torch.Tensor) -> None:
        counts[layer] += torch.bincount(expert_ids.flatten(), minlength=experts)

    head = model.draft_head
    assert head is not None
    model.observe_routing(observe)
    for text in texts:
        ids = torch.tensor(text)
        hidden = model.read([Segment(model.new_state(), ids)], LogitRows.NONE).hidden
        head.read(DraftRows(head.new_state(), hidden[:-1], ids[1:]), LogitRows.NONE)
    model.observe_routing(None)
    rows = sum(map(len, texts))
    assert int(counts[0].sum()) == rows * ranks
    shares = counts / counts.sum(1, keepdim=True) * experts
    return [[round(share, 4) for share in layer] for layer in shares.tolist()], rows


def measure_routing(model: Qwen4Exp, directory: Path, corpus: Corpus, say: Say) -> Routing:
    tokenizer = load_tokenizer(directory)
    chats = []
    for word in random_words(corpus.answers, WORDS):
        turns = [("user", f"What does {word} mean?"), ("assistant", corpus.answers[word])]
        messages = [{"role": role, "content": content} for role, content in turns]
        chats.append(tokenizer.encode_chat(messages, add_generation_prompt=False))
    if tokenizer.chat_template is not None:
        tokenizer.chat_template.close()
    dictionary, dictionary_rows = usage_of_experts(model, chats)
    say(f"routing: {dictionary_rows} rows of dictionary chats")
    manuals, manual_rows = usage_of_experts(model, random_passages(corpus.documents, PASSAGES, 256, 256))
    say(f"routing: {manual_rows} rows of manuals")
    return Routing(manuals, dictionary, manual_rows, dictionary_rows)


def count_parameters(directory: Path) -> int:
    """Numbers that training moved, the draft layer's included; block scales and hash constants are none."""
    source = open_model(directory)
    return sum(math.prod(source.shape(name)) for name in source.names() if source.stored_code(name) != "I64")


def folder_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def measure_all(directory: Path, corpus_folder: Path, text_folder: Path, say: Say) -> dict[str, Any]:
    """Everything the card shows that can be measured from the shipped folder; one thread."""
    corpus = read_corpus(corpus_folder, text_folder)
    with Engine(directory, threads=1, drafts=DEPTH) as engine:
        cpu_path = engine.settings.engine.cpu_path
        texts = [engine.detokenize(document) for document in corpus.documents]
        glosses, dictionary = measure_dictionary(engine, corpus.answers, say)
        continuations = {
            name: asdict(measure_continuations(engine, corpus.documents, tokens, temperature, say))
            for name, tokens, temperature in CONTINUATIONS
        }
    model = load_shipped(directory)
    routing = measure_routing(model, directory, corpus, say)
    compression = measure_manuals(model, corpus, texts, say)
    return {
        "parameters": count_parameters(directory),
        "measured": {
            "date": date.today().isoformat(),
            "strata": strata.__version__,
            "torch": torch.__version__,
            "cpu_path": cpu_path,
        },
        "manuals": asdict(compression),
        "glosses": asdict(glosses),
        "dictionary_windows": asdict(dictionary),
        **continuations,
        "manuals_repeating": manuals_repeating(corpus.documents),
        "routing": asdict(routing),
    }


def progress_lines() -> Say:
    started = time.monotonic()
    return lambda message: print(f"[{time.monotonic() - started:6.1f} s] {message}", flush=True)
