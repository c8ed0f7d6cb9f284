"""The sampler's kernels on a GPU: the twin's tokens at the published vocabulary, and how long each kind of row takes.

Knows cases and how they are compared; who runs them and what their times mean is the command's.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

import numpy as np
import torch

from strata.kernels.sampler import reference, triton
from strata.kernels.sampler.buffers import ChoiceScratch, ChosenTokens
from strata.kernels.sampler.plan import PlannedPart, WindowPlan
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import ChoiceOptions, SlotVariables
from strata.kernels.window_rows import WindowRows
from tests.kernels.sampler_cases import (
    MOST_DRAFTS,
    TIES,
    ChoiceCase,
    choice_case,
    plan_of,
    random_window,
    slots_of,
    start,
    tied_case,
)

VOCABULARY = 248_320


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Each raises AssertionError with the rows that differ."""
    for vocabulary, count in ((VOCABULARY, 31), (VOCABULARY, 4), (151_936, 7), (1_024, 31), (5, 16)):
        scratch = ChoiceScratch.empty(count + 1, device)
        for seed in range(3):
            case = choice_case(seed, count, vocabulary)
            yield f"choose {count + 1} rows of {vocabulary}, seed {seed}", partial(_check_choice, case, scratch, device)
    for options in TIES:
        scratch = ChoiceScratch.empty(6, device)
        for vocabulary in (VOCABULARY, 100):
            case = tied_case(options, vocabulary)
            yield f"choose among equal logits of {vocabulary}, {options}", partial(_check_choice, case, scratch, device)
    yield "choose 3 rows without filters in fewer launches", partial(_check_unfiltered, device)
    for seed in range(20):
        yield f"begin and accept, seed {seed}", partial(_check_window, seed, device)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Name, launches that may be captured, and the bytes of the logits: each is read once at least."""
    kinds = {
        "greedy": ChoiceOptions(),
        "drawn": ChoiceOptions(1.0, seed=1),
        "top-k 20": ChoiceOptions(1.0, top_k=20, seed=2),
        "top-p 0.95": ChoiceOptions(1.0, top_p=0.95, seed=3),
        "top-k 20, top-p 0.95": ChoiceOptions(1.0, top_k=20, top_p=0.95, seed=4),
    }
    for count in (1, 4, 32):
        rows = WindowRows.empty(count, 1, device)
        rows.slots.zero_()
        logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(count)).to(device) * 2.5
        scratch, chosen = ChoiceScratch.empty(count, device), ChosenTokens.empty(count, device)
        for name, options in kinds.items():
            variables = slots_of([start(0, options)], device)
            launch = partial(triton.choose_tokens, logits, rows, variables, scratch, chosen)
            yield f"choose {count} rows, {name}", launch, logits.numel() * 4
            if not options.has_filters:
                launch = partial(triton.choose_unfiltered_tokens, logits, rows, variables, scratch, chosen)
                yield f"choose {count} rows, {name}, unfiltered", launch, logits.numel() * 4
    yield from _window_speeds(device)


def _window_speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    slots = 8
    variables = slots_of([start(100, ChoiceOptions(), budget=2**30) for _ in range(slots)], device)
    plan = plan_of(1, [PlannedPart(slot, (5, 6, 7)) for slot in range(slots)], slots, 3, device)
    rows, chosen = WindowRows.empty(32, slots, device), ChosenTokens.empty(32, device)
    chosen.tokens.zero_()
    chosen.is_finite.fill_(1)
    triton.begin_window(plan, variables, rows)
    accepted, results = torch.zeros(slots, dtype=torch.int32, device=device), WindowResults.empty(slots, 3, device)
    words = (variables.words.numel() + plan.words.numel()) * 4
    yield "begin a window of 8 slots", partial(triton.begin_window, plan, variables, rows), words
    accept = partial(triton.accept_rows, chosen, rows, plan, variables, accepted, results)
    yield "accept the rows of 8 slots", accept, words


def _check_choice(case: ChoiceCase, scratch: ChoiceScratch, device: torch.device) -> None:
    count = case.rows.count
    wanted = ChosenTokens.empty(count, "cpu")
    reference.choose_tokens(case.logits, case.rows, case.variables, wanted)
    on_device, found = case.to(device), ChosenTokens.empty(count, device)
    for _ in range(2):  # the second time over what the first has left
        triton.choose_tokens(on_device.logits, on_device.rows, on_device.variables, scratch, found)
        differ = [
            (row, got, want)
            for row, (got, want) in enumerate(zip(found.tokens.tolist(), wanted.tokens.tolist(), strict=True))
            if got != want
        ]
        assert not differ, f"of {count} rows these differ (row, device, twin): {differ}"
        assert found.is_finite.tolist() == wanted.is_finite.tolist()


def _check_unfiltered(device: torch.device) -> None:
    options = [ChoiceOptions(), ChoiceOptions(0.7, seed=3), ChoiceOptions(1.0, log_min_p=-2.0, seed=4)]
    variables, rows = slots_of([start(0, each) for each in options], device), WindowRows.empty(3, 1, device)
    rows.slots.copy_(torch.arange(3))
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(8)).to(device) * 2.5
    scratch = ChoiceScratch.empty(3, device)
    found, wanted = ChosenTokens.empty(3, device), ChosenTokens.empty(3, device)
    triton.choose_unfiltered_tokens(logits, rows, variables, scratch, found)
    triton.choose_tokens(logits, rows, variables, scratch, wanted)
    assert found.tokens.tolist() == wanted.tokens.tolist(), f"{found.tokens.tolist()} of {wanted.tokens.tolist()}"


def _check_window(seed: int, device: torch.device) -> None:
    random = np.random.default_rng(seed)
    variables, parts = random_window(random)
    tokens = torch.from_numpy(random.integers(0, 3, 12).astype(np.int32))
    is_finite = torch.from_numpy((random.random(12) < 0.9).astype(np.int32))
    ends = []
    for place, functions in (("cpu", reference), (device, triton)):
        plan = plan_of(seed, parts, 3, MOST_DRAFTS, place)
        words = SlotVariables(variables.words.clone().to(place))
        rows = WindowRows.empty(12, 3, place)
        ends.append(_window(functions, plan, words, rows, ChosenTokens(tokens.to(place), is_finite.to(place))))
    assert ends[0] == ends[1], f"twin and device end with {ends}"


def _window(
    functions: ModuleType, plan: WindowPlan, variables: SlotVariables, rows: WindowRows, chosen: ChosenTokens
) -> list[list[int]]:
    """Begin and end a window by one road; everything that was written."""
    device = rows.tokens.device
    accepted, results = (
        torch.full((3,), 9, dtype=torch.int32, device=device),
        WindowResults.empty(3, MOST_DRAFTS, device),
    )
    functions.begin_window(plan, variables, rows)
    functions.accept_rows(chosen, rows, plan, variables, accepted, results)
    fields = [getattr(rows, name).tolist() for name in WindowRows.__dataclass_fields__]
    return [*fields, variables.words.flatten().tolist(), accepted.tolist(), results.words.tolist()]
