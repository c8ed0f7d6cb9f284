"""Hundreds of prompts that are given up in the middle of being read, and the memory of the process before and after.

    python -m tests.engine.cancelled_reads 1000                   the model that ships with strata
    python -m tests.engine.cancelled_reads 200 --model some.gguf --cpu-path torch --drafts 0

Ends with 1 if memory grew by more than `MOST_GROWTH`, or if an answer behind all that is not the one from before.
"""

import argparse
import random
import sys
from pathlib import Path

from strata.build import load_model
from strata.engine.engine import TokenEngine
from strata.engine.messages import Drawn, Ended
from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.types import FinishReason

FIRST = 50  # cancelled reads in front of the measuring: what the allocator and the slots keep is there by then
SHORTEST, LONGEST = 70, 700  # tokens of a prompt
MOST_GROWTH = 16 << 20


class Reads:
    """One engine whose slots are used again and again."""

    def __init__(self, engine: TokenEngine, settings: EngineSettings, seed: int = 1) -> None:
        self.engine = engine
        self.scheduler = Scheduler(engine, Limits.of(settings, settings.slots or 1, engine.chunk_rows))
        self._chance = random.Random(seed)
        self._number = 0

    def answer(self, prompt: tuple[int, ...], max_tokens: int = 6) -> list[int]:
        """The greedy reply to a prompt."""
        self._submit(prompt, max_tokens)
        tokens: list[int] = []
        while self.scheduler.has_work:
            for event in self.scheduler.turn():
                if isinstance(event, Drawn):
                    tokens += [draw.token_id for draw in event.draws]
        return tokens

    def cancel_one(self) -> bool:
        """Submit a prompt and give it up after some steps; whether it was in the middle of being read."""
        self._submit(self.prompt(), 1)
        for _ in range(self._chance.randrange(2, 20)):  # the first opens a slot
            if self.scheduler.has_work:
                self.scheduler.turn()
        self.scheduler.cancel(self._number)
        reasons = []
        while self.scheduler.has_work:
            reasons += [event.reason for event in self.scheduler.turn() if isinstance(event, Ended)]
        return reasons == [FinishReason.CANCELLED]

    def prompt(self) -> tuple[int, ...]:
        """Token ids that look like nothing in particular; some begin alike."""
        vocabulary, count = self.engine.model.vocabulary_size, self._chance.randrange(SHORTEST, LONGEST)
        chance = random.Random(self._chance.randrange(20))
        return tuple(chance.randrange(vocabulary) for _ in range(min(count, self.engine.context - 8)))

    def _submit(self, prompt: tuple[int, ...], max_tokens: int) -> None:
        self._number += 1
        options = SamplingOptions(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.submit(self._number, TokenRequest(prompt, options))


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reads", type=int)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cpu-path", choices=("native", "torch"), default="native")
    parser.add_argument("--drafts", type=int, default=1)
    parser.add_argument("--threads", type=int)
    wanted = parser.parse_args()
    chosen = {"threads": wanted.threads, "drafts": wanted.drafts, "cpu_path": wanted.cpu_path}
    settings = EngineSettings(slots=2, context=4096, device="cpu", **chosen)
    reads = Reads(load_model(wanted.model, settings).engine, settings)
    prompt = reads.prompt()
    expected = reads.answer(prompt)
    for _ in range(FIRST):
        reads.cancel_one()
    before, cancelled = resident_bytes(), 0
    print(f"before: {before / 2**20:,.1f} MiB resident, {reads.engine.memory()}")
    for number in range(1, wanted.reads + 1):
        cancelled += reads.cancel_one()
        if number % max(1, wanted.reads // 4) == 0:
            print(f"{number} reads, {cancelled} given up in the middle: {resident_bytes() / 2**20:,.1f} MiB resident")
    after = resident_bytes()
    print(f"after: {after / 2**20:,.1f} MiB resident, {reads.engine.memory()}")
    is_same = reads.answer(prompt) == expected
    print(f"the first prompt's answer is {'the same' if is_same else 'ANOTHER ONE'}")
    return 0 if is_same and after - before <= MOST_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
