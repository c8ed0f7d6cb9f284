"""Decodes under every schema of the suite and validates what comes out: `python -m tests.conformance.grammar_run`.

Knows the suite, the grammars and two models: one of random logits over a small vocabulary, whose taste for short ends
grows with the reply's length so that replies end, and the shipped one.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import torch

from strata.build import load_model
from strata.engine.engine import TokenEngine
from strata.engine.request import TokenRequest
from strata.engine.steps import Open, Read, Window
from strata.errors import EngineError, RequestError
from strata.sampling.grammar import Grammar
from strata.sampling.grammar_compile import GrammarFactory, Vocabulary
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Sampler
from strata.settings import EngineSettings
from strata.text.grammar_vocabulary import grammar_vocabulary
from strata.types import FinishReason
from tests.conformance.json_schemas import COUNT, NamedSchema, schemas
from tests.conformance.table import Row

MOST_TOKENS = 400
_PIECES = (
    b'{"', b'":', b'":"', b'","', b'"}', b'", "', b"},", b"}}", b"]}", b"[]", b"{}", b"true", b"false", b"null", b" a",
    b"the", b"name", b"value", b"\n  ", b"    ", b"12", b"2026-", b"-01", b"T00:", b"00Z", b"@", b".com", b"http://",
    "é".encode(), "日".encode(), "🙂".encode(), b"\\n", b'\\"', b"kind", b"data", b"children",
)  # fmt: skip
# What brings a reply to its end, the best first: outside of strings and inside of them.
_ENDINGS = (
    (b"}", b"]", b'"', b",", b"null", b"1", b"0"),
    (b'"', b"]", b"}", b"@", b".com", b"A", "é".encode(), b",", b"1", b"0"),
)
_TURN = 20  # tokens after which the one taste makes way for the other: neither alone gets out of everything


def small_vocabulary() -> Vocabulary:
    """Every byte, pieces of JSON, two ends of text and a control token; logits are wider than it."""
    tokens = [bytes([byte]) for byte in range(256)] + list(_PIECES) + [b"<|end|>", b"<|im_end|>", b"</think>"]
    ends = frozenset({len(tokens) - 3, len(tokens) - 2})
    return Vocabulary(tokens, ends | {len(tokens) - 1}, ends, width=320)


class RandomModel:
    """Logits of a position: random, and more and more for short ends."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._tastes = [_taste(vocabulary, pieces) for pieces in _ENDINGS]

    def logits(self, position: int) -> torch.Tensor:
        """One row."""
        taste = self._tastes[position // _TURN % len(self._tastes)]
        noise = torch.randn(len(taste), generator=self._random) * 2
        return noise + taste * (position / 40)


def _taste(vocabulary: Vocabulary, pieces: Sequence[bytes]) -> torch.Tensor:
    taste = torch.zeros(vocabulary.width)
    taste[sorted(vocabulary.end_ids)] = len(pieces) + 1.0
    for rank, piece in enumerate(pieces):
        taste[list(vocabulary.tokens).index(piece)] = float(len(pieces) - rank)
    taste[[9, 10, 13, 32]] = -2.0  # white space
    return taste


@dataclass(frozen=True)
class Outcome:
    """What came of one schema."""

    name: str
    kind: str  # refused, length, valid, invalid
    is_relaxed: bool
    text: str
    why: str
    seconds: float


@dataclass(frozen=True)
class Reply:
    """A reply as text."""

    text: str
    is_whole: bool  # it ended by itself
    notices: tuple[str, ...]


def decode(grammar: Grammar, vocabulary: Vocabulary, seed: int) -> tuple[bytes, bool]:
    """A reply of the random model, and whether it came to its end."""
    model = RandomModel(vocabulary, seed)
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=seed), vocabulary.width, grammar=grammar)
    text = b""
    for position in range(MOST_TOKENS):
        sampler.prepare()
        token_id = sampler.sample(model.logits(position), position).token_id
        sampler.commit([token_id])
        if token_id not in vocabulary.end_ids:
            text += vocabulary.tokens[token_id]
        if sampler.is_finished:
            return text, True
    return text, False


def problem(text: str, schema: Any) -> str:
    """Why a text does not fulfil a schema; "" if it does."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    found = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return next((error.message[:200] for error in found), "")


def run_random(suite: Sequence[NamedSchema]) -> Iterator[Outcome]:
    """Every schema on the random model."""
    vocabulary = small_vocabulary()
    factory = GrammarFactory(lambda: vocabulary)
    for index, named in enumerate(suite):

        def reply(spec: GrammarSpec, seed: int = index) -> Reply:
            grammar = factory.compile(spec)
            data, is_whole = decode(grammar, vocabulary, seed)
            return Reply(data.decode("utf-8", "replace"), is_whole, grammar.notices)

        yield outcome(named, reply)


def run_shipped(suite: Sequence[NamedSchema], drafts: int) -> Iterator[Outcome]:
    """Every schema on the model that ships with strata, by the road of a request through the engine."""
    settings = EngineSettings(drafts=drafts)
    loaded = load_model(None, settings)
    width = loaded.engine.model.vocabulary_size
    vocabulary = grammar_vocabulary(loaded.tokenizer, loaded.end_of_text_ids, width)
    engine = TokenEngine(loaded.engine.model, settings, GrammarFactory(lambda: vocabulary))
    prompt = tuple(loaded.tokenizer.encode_chat([{"role": "user", "content": "What does harbour mean?"}]))
    for index, named in enumerate(suite):

        def reply(spec: GrammarSpec, seed: int = index) -> Reply:
            options = SamplingOptions(temperature=1.0, seed=seed, max_tokens=MOST_TOKENS)
            request = TokenRequest(prompt, options, loaded.end_of_text_ids, grammar=spec)
            token_ids, is_whole, notices = engine_reply(engine, request, drafts)
            return Reply(loaded.tokenizer.decode(token_ids), is_whole, notices)

        yield outcome(named, reply)


def engine_reply(engine: TokenEngine, request: TokenRequest, drafts: int) -> tuple[list[int], bool, tuple[str, ...]]:
    """Token ids, whether the reply came to its end, and notices. Raises RequestError for a grammar that is refused."""
    pending = engine.prepare(request)
    (opened,) = engine.run(Open(0, request, prepared=pending.result() if pending is not None else None))
    (result,) = engine.run(Read(0, len(request.prompt)))
    token_ids = [draw.token_id for draw in result.draws]
    while result.reason is None and result.error is None:
        (result,) = engine.run(Window({0: drafts}))
        token_ids += [draw.token_id for draw in result.draws]
    if result.error is not None:
        raise EngineError(result.error)
    return token_ids, result.reason is FinishReason.STOP, opened.notices


def outcome(named: NamedSchema, reply: Callable[[GrammarSpec], Reply]) -> Outcome:
    """Ask for a reply under a schema and judge it."""
    started = time.perf_counter()
    try:
        made = reply(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(named.schema)))
    except RequestError as error:
        return Outcome(named.name, "refused", False, "", str(error), time.perf_counter() - started)
    why = problem(made.text, named.schema) if made.is_whole else ""
    kind = ("invalid" if why else "valid") if made.is_whole else "length"
    return Outcome(named.name, kind, bool(made.notices), made.text, why, time.perf_counter() - started)


def summary(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Outcomes counted, those under relaxed grammars apart."""
    return Counter(("relaxed " if outcome.is_relaxed else "") + outcome.kind for outcome in outcomes)


def row() -> Row:
    """The whole suite on the random model, as a row of the table of promises."""
    counts = summary(run_random(schemas()))
    ended = counts["valid"] + counts["invalid"]
    relaxed = f"relaxed: {counts['relaxed valid']} valid, {counts['relaxed invalid']} not"
    found = f"{counts['valid']} of {ended} valid, {counts['length']} too long, {counts['refused']} refused; {relaxed}"
    return Row("JSON schemas: replies that end fulfil them", "all", found, counts["invalid"] == 0 and ended > 400)


def main() -> None:
    """Run the suite and print the counts, every invalid reply, and the longest time that one schema took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--shipped", type=int, default=100, help="schemas that the shipped model is asked for, too")
    arguments = parser.parse_args()
    suite = schemas(arguments.count)
    sample = suite[: arguments.shipped]
    runs = {"random model": run_random(suite)}
    runs |= {f"shipped model, drafts {drafts}": run_shipped(sample, drafts) for drafts in (0, 3)}
    texts = {}
    for name, run in runs.items():
        outcomes = list(run)
        texts[name] = [outcome.text for outcome in outcomes]
        for found in outcomes:
            if found.kind == "invalid":
                print(f"{found.name}{' (relaxed)' if found.is_relaxed else ''}: {found.why}: {found.text[:100]!r}")
        slowest = max(outcomes, key=lambda found: found.seconds)
        print(f"{name}: {dict(summary(outcomes))}; slowest {slowest.name} {slowest.seconds:.2f} s")
        if any(found.kind == "invalid" and not found.is_relaxed for found in outcomes):
            sys.exit("a reply that came to its end does not fulfil its schema")
    if texts["shipped model, drafts 0"] != texts["shipped model, drafts 3"]:
        sys.exit("drafts changed a reply")


if __name__ == "__main__":
    main()
