"""Trains the shipped model through its stages, in one run or resumed from bf16 pieces.

Knows the order of things; the maths is in the files beside it. Run: python -m training.train --help
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.data import DictionaryRows, ManualRows, Mixture
from training.export import is_quantized, load_resume, rounded, save_model, save_resume
from training.indexer import IndexerTargets
from training.language import Batch, Losses, PocketModel
from training.optimizer import Optimizer
from training.recipe import STAGES, PocketShape, Stage

WARMUP_STEPS = 200


@dataclass(frozen=True)
class Plan:
    """What one run does; token counts are of the whole training, also when this run resumes in its middle."""

    tokens: int
    rows: int  # flat rows of a batch, the same in every stage
    manual_share: float
    further_share: float
    drop: float
    deadline: float  # seconds of this run after which it saves and stops
    decay_from: float = 0.5  # progress at which the rate begins to fall linearly
    last_rate: float = 0.03


class Trainer:
    def __init__(self, data: Path, plan: Plan, device: torch.device, seed: int) -> None:
        torch.manual_seed(seed)
        self.plan, self.device, self.seed = plan, device, seed
        self.shape = PocketShape()
        self.model = PocketModel(self.shape).to(device)
        self.model.hash.to(device)
        self.optimizer = Optimizer(self.model, matrix_rate=3e-3, other_rate=3e-3, table_rate=6e-3, decay=0.1)
        self.dictionary = DictionaryRows(data, device, seed)
        self.mixture = Mixture(
            ManualRows(data / "manuals_train.npy", device, seed),
            ManualRows(data / "manuals_extra.npy", device, seed + 1),
            self.dictionary,
            plan.manual_share,
            plan.further_share,
        )
        self.heldout = torch.from_numpy(np.load(data / "manuals_heldout.npy").astype(np.int64)).to(device)
        self.heldout_bytes = json.loads((data / "manuals_heldout_bytes.json").read_text())["bytes"]
        self.tokens_done = 0
        self.step_count = 0
        self.history: list[dict[str, Any]] = []
        self.started = time.monotonic()

    def progress(self) -> float:
        return self.tokens_done / self.plan.tokens

    def stage(self) -> Stage:
        reached = 0.0
        for stage in STAGES:
            reached += stage.share
            if self.progress() < reached:
                return stage
        return STAGES[-1]

    def rate_scale(self) -> float:
        plan, progress = self.plan, self.progress()
        falling = 1.0
        if progress > plan.decay_from:
            falling = 1 - (1 - plan.last_rate) * (progress - plan.decay_from) / (1 - plan.decay_from)
        return min(1.0, (self.step_count + 1) / WARMUP_STEPS) * max(falling, plan.last_rate)

    def batch(self, stage: Stage) -> Batch:
        return self.mixture.batch(self.plan.rows // stage.length, stage.length, self.plan.drop)

    def targets(self, stage: Stage) -> IndexerTargets | None:
        if stage.indexer_only:
            return IndexerTargets(self.plan.rows // stage.length, 0, stage.length)
        if stage.sparse:
            count = min(1024, stage.length)
            choices = stage.length // count
            return IndexerTargets(
                max(1, min(4, self.plan.rows // stage.length)), (self.step_count % choices) * count, count
            )
        return None

    def step(self, stage: Stage) -> Losses:
        masters = self.quantize() if stage.quantized else {}
        drafts = 3 if self.step_count % 2 and not stage.indexer_only else 1
        losses = self.model(self.batch(stage), stage.sparse, self.targets(stage), drafts, stage.indexer_only)
        losses.total.backward()
        for parameter, master in masters.items():
            parameter.data.copy_(master)
        self.norm = self.optimizer.step(self.rate_scale(), stage.indexer_only)
        self.step_count += 1
        self.tokens_done += self.plan.rows
        return losses

    def quantize(self) -> dict[torch.nn.Parameter, Tensor]:
        """Puts the values that block-FP8 will hold in place of the weights; -> the weights to put back."""
        masters = {}
        for name, parameter in self.model.named_parameters():
            if is_quantized(name, parameter):
                masters[parameter] = parameter.detach().clone()
                parameter.data.copy_(rounded(parameter.detach()))
        return masters

    @contextmanager
    def measuring(self, quantized: bool) -> Iterator[None]:
        masters = self.quantize() if quantized else {}
        self.model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
        self.model.train()
        for parameter, master in masters.items():
            parameter.data.copy_(master)

    def measure(self, stage: Stage) -> dict[str, Any]:
        """Held-out bits per byte (contexts of the stage's length), share of whole answers right, draft hits."""
        length, sequences = stage.length, self.plan.rows // stage.length
        no_drop = torch.zeros(sequences, device=self.device)
        spans = range(0, len(self.heldout) - 2, length)
        nats, hits = 0.0, np.zeros(3)
        batches = math.ceil(len(spans) / sequences)
        with self.measuring(stage.quantized):
            for index in range(batches):
                tokens = torch.zeros(sequences, length + 2, dtype=torch.int64, device=self.device)
                weight = torch.zeros(sequences, length + 2, device=self.device)
                for row, start in enumerate(spans[index * sequences : (index + 1) * sequences]):
                    piece = self.heldout[start : start + length + 1]
                    tokens[row, : len(piece)] = piece
                    weight[row, 1 : len(piece)] = 1
                losses = self.model(Batch(tokens, weight, no_drop), stage.sparse, None, 3)
                nats += float(losses.token * weight[:, 1 : length + 1].sum())
                hits += np.array([float(hit) for hit in losses.hits]) / batches
            answers, answer_hits = self._answers_right(stage, sequences)
        return {
            "bits_per_byte": nats / math.log(2) / self.heldout_bytes,
            "manual_hits": hits.round(3).tolist(),
            "answers_right": answers,
            "answer_hits": answer_hits,
        }

    def _answers_right(self, stage: Stage, sequences: int) -> tuple[float, list[float]]:
        """Teacher-forced: share of answers whose every token is the argmax; and the drafts' hits on answers."""
        words = np.random.default_rng(7).permutation(self.dictionary.headwords)[: sequences * stage.length // 48]
        tokens, weight, owner = self.dictionary.questions(0, words, sequences, stage.length)
        batch = Batch(tokens, weight, torch.zeros(sequences, device=self.device))
        losses = self.model(batch, stage.sparse, None, 3)
        wrong = self.model.wrong_tokens(batch, stage.sparse)
        owners = owner[:, 1 : stage.length + 1]
        asked = torch.zeros(len(words) + 1, device=self.device).index_add_(
            0, owners.flatten(), (owners > 0).float().flatten()
        )
        errors = torch.zeros_like(asked).index_add_(0, owners.flatten(), wrong.flatten().float())
        counted = asked[1:] > 0
        right = ((errors[1:] == 0) & counted).sum() / counted.sum()
        return float(right), [round(float(hit), 3) for hit in losses.hits]

    def record(self, losses: Losses, stage: Stage, extra: dict[str, Any] | None = None) -> None:
        usage = torch.stack(losses.usage) * self.shape.num_experts
        entry = {
            "tokens": self.tokens_done,
            "seconds": round(time.monotonic() - self.started, 1),
            "stage": stage.name,
            "loss": round(float(losses.token), 4),
            "drafts": [round(float(d), 4) for d in losses.drafts],
            "hits": [round(float(h), 3) for h in losses.hits],
            "balance": round(float(losses.balance), 3),
            "indexer": round(float(losses.indexer), 4),
            "least_used": round(float(usage.min()), 3),
            "norm": round(float(self.norm), 3),
            "rate": round(self.rate_scale(), 4),
            **(extra or {}),
        }
        self.history.append(entry)
        print(json.dumps(entry), flush=True)

    def run(self, out: Path, log_every: int, measure_every: int) -> None:
        """Trains until tokens or time are used up; leaves a state to resume from, and the model."""
        last = self.stage()
        while self.tokens_done < self.plan.tokens and time.monotonic() - self.started < self.plan.deadline:
            stage = self.stage()
            losses = self.step(stage)
            if self.step_count % measure_every == 0 or stage.name != last.name:
                self.record(losses, stage, self.measure(stage))
                (out / "history.json").write_text(json.dumps(self.history))
                self.save(out)
            elif self.step_count % log_every == 0:
                self.record(losses, stage)
            last = stage
        self.record(losses, stage, self.measure(stage))
        (out / "history.json").write_text(json.dumps(self.history))
        self.save(out)
        save_model(out, self.shape, self.model.hub_tensors())

    def save(self, out: Path) -> None:
        facts = {"tokens_done": self.tokens_done, "seed": self.seed, "history": self.history}
        save_resume(out, dict(self.model.named_parameters()), facts)

    def resume(self, folder: Path) -> None:
        """Goes on from saved weights; the optimizers start anew behind a warm-up."""
        weights, facts = load_resume(folder)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        self.tokens_done, self.history = facts["tokens_done"], facts["history"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.train", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/corpus"))
    parser.add_argument("--out", type=Path, default=Path("build/pocket"))
    parser.add_argument("--resume", type=Path, help="folder of an earlier run")
    parser.add_argument("--tokens", type=float, default=500e6, help="tokens of the whole training")
    parser.add_argument("--rows", type=int, default=65_536, help="tokens of a batch")
    parser.add_argument("--manual-share", type=float, default=0.32, help="share of rows from the five manuals")
    parser.add_argument("--further-share", type=float, default=0.28, help="share of rows from further manuals")
    parser.add_argument("--drop", type=float, default=0.1, help="dropout on manuals")
    parser.add_argument("--minutes", type=float, default=600, help="save and stop after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--measure-every", type=int, default=500)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    plan = Plan(
        int(arguments.tokens),
        arguments.rows,
        arguments.manual_share,
        arguments.further_share,
        arguments.drop,
        arguments.minutes * 60,
    )
    trainer = Trainer(arguments.data, plan, device, arguments.seed)
    if arguments.resume:
        trainer.resume(arguments.resume)
    if not arguments.no_compile:
        trainer.model.compile()
    arguments.out.mkdir(parents=True, exist_ok=True)
    trainer.run(arguments.out, arguments.log_every, arguments.measure_every)


if __name__ == "__main__":
    main()
