"""`python -m tests.gpu.reading`: do prompts that pass this GPU in chunks give what they should, wherever they are cut?

For people with an NVIDIA GPU; a minute or two, most of it compiling. Tiny models: logits beside the torch road, bits
over cuts, windows in between, marks and caches, nothing compiled behind the warm-up; reads that give way, and reads
over two stages of the card. `--device cpu` runs the torch road against itself, `--only` some groups of checks.
"""

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from strata.engine.chunk_loading import make_chunks, warm_up_chunks
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.experts.store import ExpertStore
from strata.experts.tiers import ExpertTiers, WindowSize
from strata.models.base import LogitRows, Segment
from strata.models.device.describe import describe
from strata.models.device.description import SparseMlp
from strata.models.device.state import SavedSlot
from strata.native.pool import Pool
from tests.engine.cancelled_chunks import cancel_reads, host_bytes
from tests.engine.tiered_stages import Tiering, built, share_table, sparse_layers, store_of
from tests.gpu.passing_reads import SLOTS, AsideChecks, ChainChecks
from tests.random_text import text_of

MODELS = (("qwen4_exp", "none"), ("qwen4_exp", "code4"), ("qwen3_5_moe", "code8"), ("qwen3_moe", "none"))
TIERINGS = (Tiering(1.0), Tiering(0.0), Tiering(0.25), Tiering(0.5, is_exclusive=True))
MOST_ERROR = 0.1  # of a row's logits beside the torch road's, in the median
MOST_GROWTH = 64 << 20  # of main memory, by reads that are given up
ROWS, CAPACITY, CONTEXT = 200, 256, 512
GROUPS = ("one", "aside", "chain")  # of checks: a read by itself, reads that give way, two stages
Read = tuple[torch.Tensor, SavedSlot]  # logits of all rows, and what they left behind


def model_on(name: str, choice: str, device: torch.device, steps: ReadSteps | None = None) -> StageModel:
    """All experts on the device."""
    made, description = built(name, choice, device)
    stage = Stage(description, StageSizes(SLOTS, CONTEXT), (1, 32))
    return StageModel(stage, stage.run, made.config, made.experts_per_row, make_chunks(stage, CAPACITY, None), steps)


def read(model: StageModel, text: torch.Tensor, cuts: Sequence[int] = ()) -> Read:
    """In a slot of its own, which is given back."""
    state = model.new_state()
    pieces = [text[start:stop] for start, stop in itertools.pairwise((0, *cuts, len(text)))]
    logits = torch.cat([model.read([Segment(state, piece)], LogitRows.ALL).logits for piece in pieces])
    return _ended(model, state, logits)


def _ended(model: StageModel, state: StageSlot, logits: torch.Tensor) -> Read:
    saved = model.stage.stages[0].state.save(state.index, state.position)
    model.release(state)
    return logits, saved


def are_equal(one: Read, other: Read) -> bool:
    """Bit for bit."""
    states = zip(one[1].tensors, other[1].tensors, strict=True)
    return torch.equal(one[0], other[0]) and all(torch.equal(found, wanted) for found, wanted in states)


class Checks:
    """The checks of one model on one device."""

    def __init__(self, name: str, choice: str, device: torch.device, cancelled: int) -> None:
        """cancelled: how many reads are given up."""
        self._name, self._choice, self._device, self._cancelled = name, choice, device, cancelled
        self._model: StageModel | None = None

    def of(self, group: str) -> Sequence[tuple[str, Callable[[], str]]]:
        """Each gives a line about what it found, or raises AssertionError."""
        if group == "aside":
            aside = AsideChecks(partial(model_on, self._name, self._choice, self._device))
            return [("gives way", aside.gives_way), ("two, one given up", aside.given_up)]
        if group == "chain":
            chain = ChainChecks(
                self._name, self._choice, self._device, partial(model_on, self._name, self._choice, self._device)
            )
            checks = (("runs", chain.runs), ("gives way", chain.gives_way), ("given up", chain.given_up))
            return [(f"two stages: {what}", check) for what, check in checks]
        return [
            ("warm-up", self.warm_up),
            ("cuts", self.cuts),
            ("lengths", self.lengths),
            ("windows between", self.windows_between),
            ("logits", self.logits),
            ("caches", self.caches),
            *([(f"{self._cancelled} cancelled", self.cancelled)] if self._cancelled else []),
        ]

    @property
    def model(self) -> StageModel:
        if self._model is None:
            self._model = model_on(self._name, self._choice, self._device)
        return self._model

    def warm_up(self) -> str:
        begin = time.monotonic()
        assert self.model.chunks is not None
        warm_up_chunks(self.model.chunks)
        self.model.stage.wait()
        taken = time.monotonic() - begin
        if self._device.type == "cpu":
            return f"{taken:.1f} s"
        from strata.kernels.compiled import noting_compilations

        with noting_compilations() as noted:
            for rows in (1, 2, 17, 64, 65, ROWS):
                read(self.model, text_of(rows))
        assert not noted.count, f"compiled or fetched behind it: {sorted({*noted.compiled, *noted.fetched})}"
        return f"{taken:.1f} s, and nothing is compiled behind it"

    def cuts(self) -> str:
        text = text_of(ROWS)
        whole = read(self.model, text)
        for cuts in ((64,), (128,), (64, 128, 192)):
            assert are_equal(read(self.model, text, cuts), whole), f"cut at {cuts} it differs"
        return "logits and state are equal"

    def lengths(self) -> str:
        whole = read(self.model, text_of(ROWS))[0]
        for rows in (64, 128, 192):
            assert torch.equal(read(self.model, text_of(ROWS)[:rows])[0], whole[:rows]), f"{rows} rows differ"
        for rows in (1, 3, 33, 65, 127, 129):
            error = float((read(self.model, text_of(ROWS)[:rows])[0] - whole[:rows]).abs().max())
            assert error < MOST_ERROR, f"{rows} rows differ by {error:.3f}"
        return "a text's rows are those of a longer one"

    def windows_between(self) -> str:
        for by_tiles in (False, True):
            self._windows_between(model_on(self._name, self._choice, self._device, ReadSteps(by_tiles=by_tiles)))
        return "the same bits, and the mark is a read that ended there"

    def _windows_between(self, model: StageModel) -> None:
        text = text_of(ROWS)
        whole = read(self.model, text)
        stream, state = model.new_state(), model.new_state()
        model.read([Segment(stream, text_of(30, 4))])
        reading = model.begin_read(Segment(state, text), LogitRows.ALL, marks=[128])
        while not reading.advance():
            model.commit(model.window([Segment(stream, text_of(1, 5))]), [1])
        logits = reading.finish().logits
        assert are_equal(_ended(model, state, logits), whole), "windows of another slot change the read"
        model.release(stream)
        short = read(model, text[:128])[1].tensors
        kept = reading.checkpoints[0].parts_of(0)
        for part, wanted in zip(kept, (*short[:3], short[-1][None]), strict=True):
            assert torch.equal(part, wanted.to(part.device)), "the state at the mark differs"

    def logits(self) -> str:
        text = text_of(ROWS)
        found, wanted = (
            read(self.model, text)[0],
            read(model_on(self._name, self._choice, torch.device("cpu")), text)[0],
        )
        error = float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).median())
        agree = float((found.argmax(1) == wanted.argmax(1)).float().mean())
        assert error < MOST_ERROR, f"the median row is {error:.3f} off the torch road's"
        return f"the median row is {error:.4f} off the torch road's, {agree:.0%} have the same first token"

    def caches(self) -> str:
        found = [self._in_tiers(tiering) for tiering in TIERINGS]
        for tiering, reads in zip(TIERINGS[1:], found[1:], strict=True):
            for one, other in zip(reads, found[0], strict=True):
                assert are_equal(one, other), f"with {tiering} it differs"
        return f"{len(TIERINGS)} of them give the same bits"

    def cancelled(self) -> str:
        with self._tiered(Tiering(0.25)) as model:
            whole = read(model, text_of(150))
            cancel_reads(model, text_of(150), 100)
            before = self._memory(model)
            cancel_reads(model, text_of(150), self._cancelled)
            after = self._memory(model)
            assert are_equal(read(model, text_of(150)), whole), "a read behind them differs"
        told = f"bytes of main memory and of the card before {before}, after {after}"
        assert after[0] - before[0] < MOST_GROWTH and after[1] == before[1], told
        return told

    def _memory(self, model: StageModel) -> tuple[int, int]:
        """Bytes in use: of main memory, and of the card, as torch keeps its books."""
        model.stage.wait()
        return host_bytes(), torch.cuda.memory_allocated() if self._device.type == "cuda" else 0

    def _in_tiers(self, tiering: Tiering) -> list[Read]:
        """A long text, which sends everything, and a short one, which waits for its routing."""
        with self._tiered(tiering) as model:
            return [read(model, text_of(150)), read(model, text_of(3)), read(model, text_of(150), (64,))]

    @contextmanager
    def _tiered(self, tiering: Tiering) -> Iterator[StageModel]:
        """A step of its reads is a tile."""
        made, description = built(self._name, self._choice, self._device)
        first = description.layers[sparse_layers(description)[0]].mlp
        assert isinstance(first, SparseMlp)
        store: ExpertStore = store_of(self._name, self._choice, tiering, self._device)
        with Pool(1) as pool:
            tiers = ExpertTiers(store, pool, self._device, WindowSize(32, first.experts_per_token))
            try:
                tiers.set_share(share_table(tiers, 0.0))
                stage = Stage(describe(made, self._device, tiers), StageSizes(2, CONTEXT), (1, 32))
                chunks = make_chunks(stage, CAPACITY, store)
                steps = ReadSteps(by_tiles=True)
                yield StageModel(stage, stage.run, made.config, made.experts_per_row, chunks, steps)
                stage.wait()
            finally:
                tiers.close()


def main() -> int:
    """0 if every check passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--kernels", type=Path, help="folder of compiled kernels; Triton's own if not given")
    parser.add_argument(
        "--cancelled", type=int, default=0, help="give up so many reads of each model in the middle, too"
    )
    parser.add_argument("--models", nargs="*", help="families; all if not given")
    parser.add_argument("--only", nargs="*", choices=GROUPS, default=GROUPS, help="groups of checks; all if not given")
    options = parser.parse_args()
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    if options.kernels is not None:
        from strata.kernels.compiled import use_cache

        use_cache(options.kernels)
    passed = failed = 0
    for name, choice in MODELS:
        if options.models and name not in options.models:
            continue
        checks = Checks(name, choice, device, options.cancelled)
        for what, check in (each for group in options.only for each in checks.of(group)):
            is_good, line = _tried(partial(check))
            passed, failed = passed + is_good, failed + (not is_good)
            print(f"{'ok  ' if is_good else 'FAIL'} {name} {choice}, {what}: {line}", flush=True)
    print(f"{passed} checks passed, {failed} failed")
    return int(failed > 0)


def _tried(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except AssertionError as found:
        return False, str(found)
    except Exception:  # whatever it is, the other checks go on
        return False, traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
