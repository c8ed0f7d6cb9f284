"""Every op of a decode window on a card: its kernels' own times where they run, beside the bytes that it must move.

Knows how a window is held against its twin before a time may be shown. The ops are those of a stage's own launches, at
the sizes of the published shape, each behind the one in front of it: what a cache would hold is what it holds there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

from strata.bench.conversations import ConversationPlan, Conversations
from strata.bench.kernel_profile import profile_each
from strata.bench.step_bytes import step_bytes
from strata.bench.synthetic_model import make_model, synthetic_config
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.errors import EngineError
from strata.kernels.roads import force_reference, is_reference_on
from strata.models.device.description import DeviceModel
from strata.models.device.launches import Program
from strata.models.device.synthetic import SyntheticForm
from strata.types import ProgressCallback
from strata.weights.presets import set_fields

# Quantized blocks round away from each other where their inputs differ in the last bit: far below what a wrong op does.
MOST_ERROR = 5e-3
GATE_FIELDS = (
    "hidden_size=128", "hc_lowrank=64", "moe_intermediate_size=64", "shared_expert_intermediate_size=64",
    "linear_key_head_dim=32", "linear_value_head_dim=32", "head_dim=64", "indexer_head_dim=32", "ple_embed_dim=128",
)  # fmt: skip
GATE_PART = RowsPart(0, 0, (11, 402, 7, 3000, 5, 9))
GATE_ROWS = len(GATE_PART.tokens)
# What ops hand on through buffers that both roads fill; quantized rows have another form on each, and show in the next.
GATE_BUFFERS = (
    "streams", "shares", "strengths", "stored delta", "mixer output", "attention projections", "router and shared",
    "n-gram query", "n-gram key", "n-gram value", "n-gram values", "stored n-grams", "logits",
)  # fmt: skip


@dataclass(frozen=True)
class OpTime:
    """One op of one kind of layer: medians over windows, averages over the layers of this kind."""

    kind: str
    step: str
    calls: float  # in a window
    kernels: float  # of one call
    microseconds: float  # of one call
    moved_bytes: float  # of one call
    share: float | None  # of what copying inside the card would take; None: it moves nothing that counts


def measure_ops(
    model: DeviceModel,
    slots: int,
    context: int,
    rounds: int,
    copy_gb_per_s: float,
    on_progress: ProgressCallback | None = None,
) -> list[OpTime]:
    """The ops of a window of one row for each of `slots` conversations of `context` tokens."""
    run = Conversations.open(model, ConversationPlan((slots,), context, rounds + 1))
    run.begin(slots)
    program = run.stage.launches(run.stage.window_variant(range(slots)), run.stage.bucket_for(slots))
    found = []
    for round_ in range(rounds):
        if on_progress is not None:
            on_progress("timing ops", round_, rounds)
        found.append(profile_each([launch.run for launch in program]))
        run.tokens(slots)
    if on_progress is not None:
        on_progress("timing ops", rounds, rounds)
    return summed(model, program, found, (slots, context), copy_gb_per_s)


def summed(
    model: DeviceModel,
    program: Program,
    windows: list[list[list[tuple[str, float]]]],
    size: tuple[int, int],
    copy_gb_per_s: float,
) -> list[OpTime]:
    """windows: for each window and launch its kernels. size: slots and context."""
    calls: dict[tuple[str, str], list[int]] = {}
    for index, launch in enumerate(program):
        calls.setdefault((launch.kind, launch.step), []).append(index)
    ops = []
    for (kind, step), indices in calls.items():
        times = [median(sum(taken for _, taken in window[index]) for window in windows) for index in indices]
        microseconds = sum(times) / len(indices)
        moved = sum(step_bytes(model, program[index], *size, ConversationPlan.kv_kind) for index in indices) / len(
            indices
        )
        kernels = sum(len(windows[0][index]) for index in indices) / len(indices)
        share = moved / copy_gb_per_s / 1e3 / microseconds if moved and microseconds else None
        ops.append(OpTime(kind, step, len(indices), kernels, microseconds, moved, share))
    return ops


def check_ops(device: torch.device) -> int:
    """Hold a small model's window against its twin after every launch; returns how many there were.

    Raises EngineError that names the first op behind which something differs.
    """
    config = synthetic_config(4, True)
    set_fields(config, GATE_FIELDS)
    model = make_model(config, SyntheticForm(), device)
    found = _stage(model)
    with _reference():
        wanted = _stage(model)
    programs = [stage.launches(Variant.FORWARD, GATE_ROWS) for stage in (found, wanted)]
    for mine, twin in zip(*programs, strict=True):
        mine.run()
        with _reference():
            twin.run()
        _compare(found, wanted, f"{mine.step} of a layer of kind {mine.kind}")
        _align(found, wanted)
    return len(programs[0])


def _stage(model: DeviceModel) -> Stage:
    stage = Stage(model, StageSizes(1, 512), (GATE_ROWS,))
    stage.set_rows(GATE_ROWS, [GATE_PART])
    return stage


def _compare(found: Stage, wanted: Stage, where: str) -> None:
    """Raises EngineError if a buffer differs by more than rounding."""
    for name in GATE_BUFFERS:
        mine, twin = found.workspace.held[name], wanted.workspace.held[name]
        error = float((mine - twin).norm() / twin.norm().clamp(min=1e-30))
        if not error <= MOST_ERROR:
            raise EngineError(f"behind {where} the buffer {name!r} is off by {error:.1e}: no time is shown")


def _align(found: Stage, wanted: Stage) -> None:
    """Go on from the same numbers, so that roundings never add up to another choice of experts."""
    for name in GATE_BUFFERS:
        found.workspace.held[name].copy_(wanted.workspace.held[name])


@contextmanager
def _reference() -> Iterator[None]:
    """Inside the block every op is computed by its twin."""
    before = is_reference_on("cuda")
    force_reference(True)
    try:
        yield
    finally:
        force_reference(before)
