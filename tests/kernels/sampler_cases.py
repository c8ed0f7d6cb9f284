"""Rows, options and windows that the sampler's tests choose from. Knows the sampler's arguments; asserts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strata.kernels.sampler.plan import PlannedPart, WindowPlan, plan_words
from strata.kernels.sampler.slots import IS_LIVE, ChoiceOptions, ReplyStart, SlotVariables, slot_words
from strata.kernels.window_rows import WindowRows
from strata.sampling.on_device import device_options
from strata.sampling.options import SamplingOptions

MOST_DRAFTS = 3  # of a random window


def random_options(random: np.random.Generator, vocabulary: int) -> SamplingOptions:
    """Greedy, or any mixture of the options that the device knows."""
    if random.random() < 0.2:
        return SamplingOptions(top_k=3, top_p=0.5)  # greedy: neither matters
    counts = [1, 2, 5, vocabulary // 2, vocabulary - 1, vocabulary, 2**40]
    return SamplingOptions(
        temperature=float(random.choice([0.01, 0.3, 0.7, 1.0, 1.6, 50.0])),
        top_k=int(random.choice(counts)) if random.random() < 0.5 else 0,
        top_p=float(random.choice([1e-9, 0.1, 0.5, 0.9, 0.99, 1 - 2**-53])) if random.random() < 0.5 else 1.0,
        min_p=float(random.choice([1e-4, 0.05, 0.5, 1.0])) if random.random() < 0.3 else 0.0,
        seed=int(random.integers(0, 2**63)) * 2,
    )


def random_logits(random: np.random.Generator, vocabulary: int) -> torch.Tensor:
    """A row float32: smooth or of few values, near or far, whole or with tokens ruled out."""
    row = random.normal(0, float(random.choice([1e-6, 0.1, 2.5, 12.0])), vocabulary).astype(np.float32)
    kind = random.integers(0, 5)
    if kind == 0:
        row = np.round(row)  # many equal ones
    elif kind == 1:
        row[:] = -0.0 if random.random() < 0.5 else 7.0
    elif kind == 2:
        row[random.random(vocabulary) < 0.7] = -np.inf
    elif kind == 3:
        row[random.integers(0, vocabulary, 3)] += 30.0
    if not np.isfinite(row.max()):
        row[vocabulary // 2] = 0.0
    return torch.from_numpy(row)


def start(
    position: int, options: ChoiceOptions, budget: int = 100, stop_ids: Sequence[int] = (), last: int = 1
) -> ReplyStart:
    """A reply in a slot."""
    return ReplyStart(position, last, budget, stop_ids, options)


def slots_of(starts: Sequence[ReplyStart], device: torch.device | str = "cpu") -> SlotVariables:
    """Slot s holds starts[s]."""
    variables = SlotVariables.empty(len(starts), device)
    variables.words.copy_(torch.tensor([slot_words(one) for one in starts], dtype=torch.int32))
    return variables


def plan_of(
    serial: int, parts: Sequence[PlannedPart], segments: int, most_drafts: int, device: torch.device | str = "cpu"
) -> WindowPlan:
    """A plan on a device."""
    plan = WindowPlan.empty(segments, most_drafts, device)
    plan.words.copy_(torch.tensor(plan_words(serial, parts, segments, most_drafts), dtype=torch.int32))
    return plan


@dataclass(frozen=True)
class ChoiceCase:
    """Rows, each of a slot of its own but for the last, which is unused."""

    logits: torch.Tensor
    rows: WindowRows
    variables: SlotVariables
    options: list[SamplingOptions]

    def to(self, device: torch.device | str) -> "ChoiceCase":
        """The same on a device."""
        rows = WindowRows(*(getattr(self.rows, name).to(device) for name in WindowRows.__dataclass_fields__))
        return ChoiceCase(self.logits.to(device), rows, SlotVariables(self.variables.words.to(device)), self.options)


def choice_case(seed: int, count: int, vocabulary: int) -> ChoiceCase:
    """Random rows with random options at random positions; one in sixteen is not finite."""
    random = np.random.default_rng(seed)
    logits = torch.stack([random_logits(random, vocabulary) for _ in range(count + 1)])
    for row in range(count):
        if random.random() < 1 / 16:
            logits[row, int(random.integers(vocabulary))] = float(random.choice([np.nan, np.inf, -np.nan]))
        elif random.random() < 1 / 64:
            logits[row] = -torch.inf
    options = [random_options(random, vocabulary) for _ in range(count)]
    rows = WindowRows.empty(count + 1, count + 1, "cpu")
    rows.slots[:count] = torch.from_numpy(random.permutation(count).astype(np.int32))
    rows.positions[:count] = torch.from_numpy(random.integers(0, 1 << 20, count).astype(np.int32))
    by_slot = sorted(zip(rows.slots.tolist(), options, strict=False), key=lambda pair: pair[0])
    starts = [start(0, device_options(option, slot % 3)) for slot, option in by_slot]
    return ChoiceCase(logits, rows, slots_of(starts), options)


TIES = [
    ChoiceOptions(1.0, top_k=3, seed=1),
    ChoiceOptions(1.0, top_p=0.31, seed=2),
    ChoiceOptions(1.0, top_k=9, top_p=0.5, seed=3),
    ChoiceOptions(1.0, top_k=70, top_p=0.999, seed=4),
    ChoiceOptions(0.01, top_k=100, seed=5),
]


def tied_case(options: ChoiceOptions, vocabulary: int) -> ChoiceCase:
    """Six rows of one slot with few different logits, so that a filter keeps some of equal ones."""
    count = vocabulary
    logits = torch.zeros(6, count)
    logits[1, count // 10 : count - count // 10] = 1.5
    logits[2, ::3] = 0.25
    logits[3] = torch.arange(count) * 3 // count
    logits[4, count // 2] = 1e-7  # nearer than any coarse bin tells
    logits[5] = torch.linspace(0, 40, count)
    rows = WindowRows.empty(6, 1, "cpu")
    rows.slots.zero_()
    rows.positions.copy_(torch.arange(6) * 10)
    return ChoiceCase(logits, rows, slots_of([start(0, options)]), [])


def random_window(random: np.random.Generator) -> tuple[SlotVariables, list[PlannedPart]]:
    """Four slots, some without a reply, up to three in the window; tokens and drafts of few values."""
    budgets, stops = random.integers(1, 6, 4).tolist(), random.integers(0, 12, (4, 2)).tolist()
    starts = [
        start(int(random.integers(0, 1000)), ChoiceOptions(), budget, stop_ids, last=int(random.integers(0, 3)))
        for budget, stop_ids in zip(budgets, stops, strict=True)
    ]
    variables = slots_of(starts)
    variables.words[:, IS_LIVE] = torch.from_numpy((random.random(4) < 0.8).astype(np.int32))
    slots = random.permutation(4)[: int(random.integers(0, 4))].tolist()
    return variables, [
        PlannedPart(slot, tuple(random.integers(0, 3, int(random.integers(0, 4))).tolist())) for slot in slots
    ]
