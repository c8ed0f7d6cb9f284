"""Times the shipped model with 0, 1, 2 and 3 drafts a window, in turn: when do drafts pay on this machine?

Knows the two kinds of work (dictionary questions, continuations of held-out manuals); decides nothing. One thread.
Run: python -m training.drafts
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata import Engine, Usage
from training.measure import ask, continued, random_passages, random_words, read_corpus

DEPTHS = (0, 1, 2, 3)
QUESTIONS = 20
CONTINUATIONS = 10
TOKENS = 64


def ask_all(engine: Engine, words: list[str]) -> list[Usage]:
    return [ask(engine, word)[1] for word in words]


def continue_all(engine: Engine, passages: list[list[int]]) -> list[Usage]:
    return [continued(engine, passage, TOKENS)[0] for passage in passages]


@dataclass(frozen=True)
class Round:
    """One depth's work in one round."""

    tokens_per_second: float  # decoding, on the wall clock
    tokens_per_window: float
    cpu_ms_per_token: float  # of this process, reading prompts included: what other processes do changes it least


def timed(work: Callable[[Engine, Any], list[Usage]], engine: Engine, given: Any) -> Round:
    started = time.process_time()
    usages = work(engine, given)
    cpu_seconds = time.process_time() - started
    tokens = sum(usage.completion_tokens for usage in usages)
    return Round(
        (tokens - len(usages)) / sum(usage.decode_seconds for usage in usages),
        tokens / sum(usage.windows for usage in usages),
        1000 * cpu_seconds / tokens,
    )


def spread(values: Sequence[float], digits: int) -> str:
    """median (least to most)"""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def print_table(name: str, results: dict[int, list[Round]]) -> None:
    base = results[DEPTHS[0]]
    print(f"\n{name}: median (least to most) of {len(base)} rounds\n")
    print("| drafts | tokens/s | against 0 drafts in the same round | CPU ms a token | tokens per window |")
    print("|---|---|---|---|---|")
    for depth in DEPTHS:
        rates = [one.tokens_per_second for one in results[depth]]
        ratios = [rate / other.tokens_per_second for rate, other in zip(rates, base, strict=True)]
        cpu = [one.cpu_ms_per_token for one in results[depth]]
        windows = results[depth][0].tokens_per_window
        print(f"| {depth} | {spread(rates, 1)} | {spread(ratios, 2)} | {spread(cpu, 1)} | {windows:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.drafts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--corpus", type=Path, default=Path("build/corpus"), help="what training.prepare wrote")
    parser.add_argument("--text", type=Path, default=Path("build/corpus_text"))
    arguments = parser.parse_args()
    corpus = read_corpus(arguments.corpus, arguments.text)
    words = random_words(corpus.answers, QUESTIONS)
    passages = random_passages(corpus.documents, CONTINUATIONS, 128, 256)
    engines = {depth: Engine(threads=1, drafts=depth) for depth in DEPTHS}
    for engine in engines.values():
        ask(engine, "harbour")  # the first call of a process pays for set-up
    dictionary: dict[int, list[Round]] = {depth: [] for depth in DEPTHS}
    manuals: dict[int, list[Round]] = {depth: [] for depth in DEPTHS}
    for number in range(arguments.rounds):
        for depth, engine in engines.items():
            dictionary[depth].append(timed(ask_all, engine, words))
        for depth, engine in engines.items():
            manuals[depth].append(timed(continue_all, engine, passages))
        rates = [
            f"{dictionary[depth][-1].tokens_per_second:.1f}/{manuals[depth][-1].tokens_per_second:.1f}"
            for depth in DEPTHS
        ]
        print(f"round {number + 1}, tokens/s dictionary/manuals by depth: " + "  ".join(rates), flush=True)
    for engine in engines.values():
        engine.close()
    print_table(f"{QUESTIONS} dictionary questions", dictionary)
    print_table(f"{CONTINUATIONS} continuations of {TOKENS} tokens of held-out manuals", manuals)


if __name__ == "__main__":
    main()
