"""From a request's grammar to one that can be enforced: compiled beside the engine's work, within limits.

Knows the grammar engine (llguidance, in the extra `server`) and a model's tokens as bytes; no text, no tokenizer. Its
limits are counts of work, so that every step of it ends; the deadline here is for whoever waits.
"""

import importlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from strata.errors import RequestError
from strata.sampling.grammar import Grammar, TokenLimits
from strata.sampling.grammar_source import GrammarForm, grammar_forms
from strata.sampling.grammar_spec import GrammarSpec
from strata.sampling.token_mask import mask_of_bytes

T = TypeVar("T")

COMPILE_SECONDS = 10.0
_COMPILERS = 2  # threads: one grammar that takes long does not keep others waiting
_COMPILER_STACK_BYTES = 256 << 20  # of addresses, not memory: see the sizes in grammar_source.py
_MOST_LEXER_STATES = 50_000  # 1 to 2 KB each, a grammar
_LONGEST_REASON = 300  # characters
_PLACE = re.compile(r"at (\d+)\(\d+\): (.*)", re.DOTALL)  # line and column of a fault, what it is
_EXCERPT = re.compile(r"\n\s*\d+ \| ")  # the engine shows the lines of the grammar behind what it says
_REMOTE = re.compile(r"Resource ('[^']*') is not present in a registry and retrieving it failed.*", re.DOTALL)


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens, as a grammar needs them."""

    tokens: Sequence[bytes]  # by id, in the middle of a text; b"" for an id that stands for nothing
    special_ids: frozenset[int]  # no text is made of them: a grammar has to name them
    end_ids: frozenset[int]  # allowed exactly where a grammar may stop
    width: int  # of the logits; at least as many as there are tokens


class PendingGrammar:
    """A grammar that is being compiled."""

    def __init__(self, future: "Future[Grammar]", started: float) -> None:
        self._future = future
        self._deadline = started + COMPILE_SECONDS

    @property
    def is_done(self) -> bool:
        """Whether `result` answers at once."""
        return self._future.done() or time.monotonic() >= self._deadline

    def result(self) -> Grammar:
        """Wait for it, until its deadline. Raises RequestError that says why there is no grammar."""
        try:
            return self._future.result(timeout=max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            was_waiting = self._future.cancel()
        if was_waiting:
            raise RequestError("other grammars took too long to compile: try again later")
        # It cannot be interrupted: it goes on until its work is done or its own limits end it.
        raise RequestError(f"the grammar was not compiled within {COMPILE_SECONDS:g} s: make it simpler")


class GrammarFactory:
    """Compiles grammars for one model. Safe to use from several threads.

    `vocabulary` is asked for once, by the thread that first needs it.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._tokens: _Tokens | None = None
        self._tokens_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._compilers = ThreadPoolExecutor(_COMPILERS, "grammar-compile")
        self._mask_worker = ThreadPoolExecutor(1, "grammar-masks")

    def warm_up(self) -> None:
        """Start what the first grammar needs: half a second for a vocabulary of 152,000 (docs/log.md, 2026-11-30)."""
        _grammar_engine()
        self._start(self._prepared_tokens)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of one reply. Raises RequestError that says why it cannot be enforced."""
        return self.submit(spec).result()

    def submit(self, spec: GrammarSpec) -> PendingGrammar:
        """Start compiling. Raises RequestError at once if no grammar can be enforced here."""
        _grammar_engine()
        return PendingGrammar(self._start(lambda: self._compile(spec)), time.monotonic())

    def _start(self, work: Callable[[], T]) -> "Future[T]":
        """A thread is made when work comes; how large its stack is, is a setting of the whole process."""
        with self._start_lock:
            usual = threading.stack_size(_COMPILER_STACK_BYTES)
            try:
                return self._compilers.submit(work)
            finally:
                threading.stack_size(usual)

    def _prepared_tokens(self) -> "_Tokens":
        with self._tokens_lock:
            if self._tokens is None:
                self._tokens = _prepare(self._vocabulary())
            return self._tokens

    def _compile(self, spec: GrammarSpec) -> Grammar:
        tokens = self._prepared_tokens()
        reasons: list[str] = []
        for form in grammar_forms(spec):
            matcher = _matcher(tokens, form)
            reason = _why_unusable(matcher, tokens.limits)
            if reason is None:
                notices = _notices(matcher, form, reasons)
                return Grammar(matcher, tokens.limits, self._mask_worker, spec.begins_after, notices)
            reasons.append(reason)
        raise RequestError(_refusal(spec, reasons[-1]))


@dataclass(frozen=True)
class _Tokens:
    """A vocabulary in the grammar engine's own form."""

    prepared: Any  # llguidance.LLTokenizer
    limits: TokenLimits


class _PlainTokens:
    """What the grammar engine asks a tokenizer for. It encodes no text, because no token is forced."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(vocabulary.special_ids | vocabulary.end_ids)
        self.eos_token_id = min(vocabulary.end_ids)

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("grammars that force no tokens encode no text")


def _grammar_engine() -> ModuleType:
    try:
        return importlib.import_module("llguidance")
    except ImportError:
        raise RequestError(
            "a grammar needs the package llguidance, which is not installed: pip install 'strata-moe[server]'"
        ) from None


def _prepare(vocabulary: Vocabulary) -> _Tokens:
    if not vocabulary.end_ids:
        raise RequestError("a grammar needs a model with an end-of-text token, and this one has none")
    prepared = _grammar_engine().LLTokenizer(_PlainTokens(vocabulary), eos_token=sorted(vocabulary.end_ids))
    return _Tokens(prepared, TokenLimits(vocabulary.width, vocabulary.end_ids))


def _matcher(tokens: _Tokens, form: GrammarForm) -> Any:
    engine = _grammar_engine()
    limits = engine.LLParserLimits(
        initial_lexer_fuel=form.work,
        max_lexer_states=_MOST_LEXER_STATES,
        precompute_large_lexemes=False,  # saved nothing over 200 schemas, and refuses a regex of 3 KiB at this work
        verbose_errors=False,
    )
    return engine.LLMatcher(tokens.prepared, form.source, log_level=0, limits=limits)


def _why_unusable(matcher: Any, limits: TokenLimits) -> str | None:
    """Why a grammar cannot be used. The first mask is part of it: some are too large only then, or match nothing."""
    may_come = mask_of_bytes(b"" if matcher.is_error() else matcher.compute_bitmask(), limits.width)
    if matcher.is_error():
        reason = _reason(matcher)
        return "no text fulfils it" if reason.startswith("NoExtension") else reason
    return None if may_come.any() else "no token of this model can begin it"


def _refusal(spec: GrammarSpec, reason: str) -> str:
    """The sentence for whoever asked; a fault in a rule that has a name is told under it, without our own grammar."""
    found = _PLACE.match(reason)
    lines = spec.source.splitlines()
    if found is not None and spec.named_rules and int(found[1]) <= len(lines):
        rule = lines[int(found[1]) - 1].partition(":")[0]
        for name, called in spec.named_rules:
            if rule == name or rule.startswith(f"{name}_"):
                return f"{called} cannot be enforced: {found[2]}"
    return f"the {spec.kind.value} cannot be enforced: {reason}"


def _reason(matcher: Any) -> str:
    said = _EXCERPT.split(matcher.get_error().split("\n<", 1)[0], maxsplit=1)[0]
    text = " ".join(said.split()).replace("failed to compile JSON schema: ", "")
    text = _REMOTE.sub(r"$ref \1 points outside the schema; put what it names under $defs", text)
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."


def _notices(matcher: Any, form: GrammarForm, reasons: Sequence[str]) -> tuple[str, ...]:
    warnings = tuple(" ".join(warning.split()) for warning in matcher.get_grammar_warnings())
    if not form.is_relaxed:
        return warnings
    what = "; ".join(warnings) or reasons[0]
    return (f"the schema was compiled with relaxed options, the reply may not follow all of it: {what}",)
