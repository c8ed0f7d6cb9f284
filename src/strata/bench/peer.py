"""Strata beside llama.cpp: the same GGUF file, tokens and threads, in turns (A B A B), on the processor or the GPU.

Knows how both are run and compared; the peer lives in a process of its own (`peer_worker.py`).
"""

import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from strata.api import make_runner
from strata.bench.llama_cpp import HOW_TO_GET_IT, PACKAGE, is_installed
from strata.bench.parts import profile_parts
from strata.build import LoadedModel, load_model
from strata.engine.control import RunControl
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.errors import EngineError
from strata.hardware import read_cpu, read_gpus
from strata.models.base import Segment
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.weights.gguf import open_gguf

start_process = subprocess.Popen
MOST_KL = 0.05  # both read the same weights; above it one of them reads something else and no speed is printed


@dataclass(frozen=True)
class PeerPlan:
    """What is measured."""

    file: Path
    threads: int
    rounds: int = 5
    prompt_tokens: int = 256
    decode_tokens: int = 32
    device: str = "cpu"  # or cuda: both keep everything in the GPU's memory


@dataclass(frozen=True)
class Speed:
    """Tokens a second over the rounds."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class PeerReport:
    """Both engines on one file."""

    plan: PeerPlan
    hardware: str
    peer: str
    kl: float  # of the prompt's last row, peer against ours
    ours: dict[str, Speed]  # "prompt" and "decode"
    theirs: dict[str, Speed]
    decode_ratio: float  # median over rounds of ours / theirs
    prompt_ratio: float
    decode_parts: dict[str, float]  # seconds of one more decode of ours on the processor, by part

    def as_json(self) -> str:
        """Everything, for a file."""
        values = asdict(self)
        values["plan"]["file"] = self.plan.file.name
        return json.dumps(values, indent=1)


def compare_with_peer(plan: PeerPlan) -> PeerReport:
    """Measure.

    Raises ModelError if the file cannot be read as GGUF, EngineError if the peer is missing, fails, or gives other
    logits than we do.
    """
    open_gguf(plan.file)  # what is wrong with it is told first: building llama.cpp takes minutes
    if not is_installed():
        raise EngineError(HOW_TO_GET_IT)
    context = plan.prompt_tokens + plan.decode_tokens + 8
    # one slot for the replies, one for the row that is compared
    settings = EngineSettings(device=plan.device, threads=plan.threads, context=context, slots=2)
    loaded = load_model(plan.file, settings)
    with PeerProcess(plan, context) as peer:
        vocabulary = min(peer.vocabulary_size, loaded.engine.model.vocabulary_size)
        draw = random.Random(0)
        prompt = [draw.randrange(vocabulary) for _ in range(plan.prompt_tokens)]
        follow, _ = _run_ours(loaded, prompt, plan.decode_tokens)  # also warms everything up
        kl = _gate(loaded, prompt, peer.run(prompt, follow)["logits"])
        rounds = []
        for _ in range(plan.rounds):
            mine = _run_ours(loaded, prompt, plan.decode_tokens)[1]
            answer = peer.run(prompt, follow)
            rounds.append((mine, (answer["read_seconds"], answer["decode_seconds"])))
    parts = _decode_parts(loaded, prompt, follow) if plan.device == "cpu" else {}
    return _report(plan, kl, rounds, parts)


def _report(
    plan: PeerPlan,
    kl: float,
    rounds: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    parts: dict[str, float],
) -> PeerReport:
    steps = plan.decode_tokens - 1
    ours = {"prompt": [plan.prompt_tokens / a[0] for a, _ in rounds], "decode": [steps / a[1] for a, _ in rounds]}
    theirs = {"prompt": [plan.prompt_tokens / b[0] for _, b in rounds], "decode": [steps / b[1] for _, b in rounds]}
    ratios = {name: statistics.median(a / b for a, b in zip(ours[name], theirs[name], strict=True)) for name in ours}
    return PeerReport(
        plan=plan,
        hardware=_hardware(plan),
        peer=PACKAGE,
        kl=kl,
        ours={name: _speed(values) for name, values in ours.items()},
        theirs={name: _speed(values) for name, values in theirs.items()},
        decode_ratio=ratios["decode"],
        prompt_ratio=ratios["prompt"],
        decode_parts=parts,
    )


def _hardware(plan: PeerPlan) -> str:
    if plan.device == "cuda":
        return read_gpus()[0].name
    return f"{read_cpu().model}, {plan.threads} thread{'s' if plan.threads > 1 else ''}"


def _speed(values: Sequence[float]) -> Speed:
    return Speed(statistics.median(values), min(values), max(values))


def _run_ours(loaded: LoadedModel, prompt: list[int], tokens: int) -> tuple[list[int], tuple[float, float]]:
    """Greedy: the drawn tokens but the last, which is never read, and the seconds of reading and of decoding."""
    request = TokenRequest(tuple(prompt), SamplingOptions(max_tokens=tokens, temperature=0.0, ignore_eos=True))
    drawn: list[int] = []
    for event in make_runner(loaded, EngineSettings()).run(request, RunControl()):
        if isinstance(event, TokensDrawn):
            drawn += [draw.token_id for draw in event.draws]
        elif isinstance(event, RunEnded):
            return drawn[:-1], (event.usage.read_seconds, event.usage.decode_seconds)
    raise EngineError("our own run did not end")


def _decode_parts(loaded: LoadedModel, prompt: list[int], follow: list[int]) -> dict[str, float]:
    """Seconds of each part while the tokens after a prompt are decoded."""
    model = loaded.engine.model
    state = model.new_state()
    model.read([Segment(state, torch.tensor(prompt))])

    def decode() -> None:
        for token_id in follow:
            model.commit(model.window([Segment(state, torch.tensor([token_id]))]), [1])

    return profile_parts(model, decode)


def _gate(loaded: LoadedModel, prompt: list[int], theirs: list[float]) -> float:
    """KL of the prompt's last row; raises EngineError if the two do not compute the same model."""
    model = loaded.engine.model
    mine = model.read([Segment(model.new_state(), torch.tensor(prompt))]).logits[0].double()
    shares = torch.log_softmax(torch.tensor(theirs, dtype=torch.float64), 0)
    if mine.shape != shares.shape:
        raise EngineError(f"the peer has {len(theirs):,} logits a row, we have {len(mine):,}: no speed is compared")
    kl = float((shares.exp() * (shares - torch.log_softmax(mine, 0))).sum())
    if not kl <= MOST_KL or math.isnan(kl):
        raise EngineError(
            f"the two do not compute the same model (KL {kl:.3g}, allowed {MOST_KL}): no speed is compared"
        )
    return kl


class PeerProcess:
    """llama.cpp in its own process; leaves when the context ends."""

    def __init__(self, plan: PeerPlan, context: int) -> None:
        arguments = (str(plan.file), str(plan.threads), str(context), plan.device)
        command = [sys.executable, "-m", "strata.bench.peer_worker", *arguments]
        self._process = start_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self.vocabulary_size = int(self._answer()["vocabulary_size"])
        except EngineError:
            self._stop()
            raise

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, prompt: list[int], follow: list[int]) -> dict[str, Any]:
        """Read a prompt from an empty state, then the tokens behind it one by one."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompt": prompt, "follow": follow}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineError("llama.cpp's process has ended") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"llama.cpp's process ended without an answer, with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def _stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
