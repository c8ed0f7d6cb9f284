"""Strata beside llama.cpp: the same GGUF file, tokens and threads, in turns (A B A B), on the processor or the GPU.

Knows how both are run and compared; the peer lives in a process of its own (`peer_process.py`).
"""

import json
import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from strata.api import make_runner
from strata.bench.llama_cpp import BATCH_ROWS, HOW_TO_GET_IT, PACKAGE, Placement, is_installed
from strata.bench.parts import profile_parts
from strata.bench.peer_process import PeerProcess, PeerStart, fastest_start
from strata.build import LoadedModel, load_model
from strata.engine.control import RunControl
from strata.engine.reader_room import MOST_CHUNK_ROWS
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.engine.tier_loading import threads_beside_a_card
from strata.errors import EngineError, ModelError
from strata.experts.sources import ExpertSource, open_experts
from strata.hardware import read_cpu, read_gpus
from strata.models.base import Segment
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.weights.gguf import open_gguf
from strata.weights.opening import open_model

GIB = 1 << 30
MOST_KL = 0.05  # both read the same weights; above it one of them reads something else and no speed is printed


CpuExperts = Literal["none", "half", "all"]


@dataclass(frozen=True)
class PeerPlan:
    """What is measured."""

    file: Path
    threads: int
    rounds: int = 5
    prompt_tokens: int = 256
    decode_tokens: int = 32
    device: str = "cpu"  # or cuda: both keep everything in the GPU's memory, but for:
    cpu_experts: CpuExperts = "none"  # routed experts in main memory: half of each layer's here, of the layers there

    @property
    def our_threads(self) -> int:
        """Threads of ours; llama.cpp is tried with `threads` and with one less."""
        return self.threads if self.device == "cpu" else threads_beside_a_card(self.threads)


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
    peer_start: PeerStart  # the settings that were fastest
    kl: float  # of the prompt's last row, peer against ours
    ours: dict[str, Speed]  # "prompt" and "decode"
    theirs: dict[str, Speed]
    decode_ratio: float  # median over rounds of ours / theirs
    prompt_ratio: float
    decode_parts: dict[str, float]  # seconds of one more decode of ours on the processor, by part

    def as_json(self) -> str:
        """Everything, for a file."""
        values = asdict(self)
        values["plan"]["file"] = values["peer_start"]["file"] = self.plan.file.name
        return json.dumps(values, indent=1)


def compare_with_peer(plan: PeerPlan) -> PeerReport:
    """Measure.

    Raises ModelError if the file cannot be read as GGUF or has no experts where some are to be on the processor,
    EngineError if the peer is missing, fails, or gives other logits than we do.
    """
    open_gguf(plan.file)  # what is wrong with it is told first: building llama.cpp takes minutes
    if not is_installed():
        raise EngineError(HOW_TO_GET_IT)
    context = plan.prompt_tokens + plan.decode_tokens + 8
    placement = Placement(plan.device == "cuda", layers_on_cpu(plan))
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_model(plan.file, engine_settings(plan, context, Path(folder)))
        report = _compare(plan, loaded, PeerStart(plan.file, plan.threads, context, placement, batch_rows(plan)))
        del loaded  # what was learned of experts is written when the model goes: as long as the folder is there
        return report


def _compare(plan: PeerPlan, loaded: LoadedModel, start: PeerStart) -> PeerReport:
    draw = random.Random(0)
    prompt = [draw.randrange(loaded.engine.model.vocabulary_size) for _ in range(plan.prompt_tokens)]
    follow, _ = _run_ours(loaded, prompt, plan.decode_tokens)  # also warms everything up
    start = fastest_start(start, prompt, follow)
    with PeerProcess(start) as peer:
        kl = _gate(loaded, prompt, peer.run(prompt, follow)["logits"])
        rounds = []
        for _ in range(plan.rounds):
            mine = _run_ours(loaded, prompt, plan.decode_tokens)[1]
            answer = peer.run(prompt, follow)
            rounds.append((mine, (answer["read_seconds"], answer["decode_seconds"])))
    parts = _decode_parts(loaded, prompt, follow) if plan.device == "cpu" else {}
    return _report(plan, start, kl, rounds, parts)


def engine_settings(plan: PeerPlan, context: int, folder: Path) -> EngineSettings:
    """Ours: a slot for the replies, one for the row that is compared; what is learned of experts stays in `folder`."""
    settings = EngineSettings(device=plan.device, threads=plan.our_threads, context=context, slots=2)
    if plan.cpu_experts == "none":
        return settings
    experts = open_experts(open_model(plan.file))
    whole = sum(experts.count(layer) * experts.layout(layer).total_bytes for layer in _main_layers(experts))
    on_card = 0.0 if plan.cpu_experts == "all" else whole / 2 / GIB
    return replace(settings, cache_gib=on_card, expert_profile=str(folder / "profile"))


def batch_rows(plan: PeerPlan) -> int:
    """Rows of the prompt that llama.cpp takes at once: on a card all of them, up to as many as a chunk of ours has.

    Experts in main memory are sent to the card once for each batch, so that larger ones are faster there.
    """
    rows = -(-plan.prompt_tokens // BATCH_ROWS) * BATCH_ROWS
    return min(rows, MOST_CHUNK_ROWS) if plan.device == "cuda" else BATCH_ROWS


def layers_on_cpu(plan: PeerPlan) -> tuple[int, ...]:
    """Numbers of the layers whose experts llama.cpp keeps in main memory: all or the first half of those with some.

    Raises ModelError for a model without.
    """
    if plan.cpu_experts == "none":
        return ()
    layers = [int(name.split(".")[2]) for name in _main_layers(open_experts(open_model(plan.file)))]
    if not layers:
        raise ModelError(f"{plan.file.name} has no routed experts: leave out --cpu-experts")
    return tuple(layers if plan.cpu_experts == "all" else layers[: (len(layers) + 1) // 2])


def _main_layers(experts: ExpertSource) -> list[str]:
    """Layers with experts but for the draft layer, which neither of the two runs here."""
    return [layer for layer in experts.layers() if not layer.startswith("mtp.")]


def _report(
    plan: PeerPlan,
    start: PeerStart,
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
        peer_start=start,
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
