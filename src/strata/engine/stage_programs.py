"""What is launched in one go over the rows of a bucket, by a stage that has all layers of a model or some of them.

Knows the order of what a window is made of; its layers are in `models/device/programs.py`.

    the card chooses    first stage  WINDOW ─ streams ─▶ last stage  WINDOW ─ tokens ─▶ first stage  TAKE
    the host chooses    FORWARD ─ streams ─▶ FORWARD ─ logits ─▶ host; then COMMIT on each stage
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch

from strata.kernels.delta_rows import SegmentLengths
from strata.kernels.sampler import accept_rows, begin_window, choose_tokens, choose_unfiltered_tokens
from strata.kernels.sampler.buffers import ChoiceScratch, ChosenTokens
from strata.kernels.sampler.plan import WindowPlan
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import SlotVariables
from strata.models.device.buffers import Buffers
from strata.models.device.launches import Launch, Program
from strata.models.device.programs import build_program


class Variant(Enum):
    """What is run in one go over a bucket's rows."""

    WINDOW = "window"  # by the plan: rows, layers, head, tokens, which of them stand, commit
    UNFILTERED_WINDOW = "unfiltered window"  # the same in fewer launches, where no reply has top-k or top-p
    FORWARD = "forward"  # of given rows: layers, head
    COMMIT = "commit"  # the accepted rows become state
    READ = "read"  # of given rows: layers, and all of them become state; no head
    TAKE = "take"  # by tokens that another stage chose: which of them stand, commit. Its window ends with the layers


@dataclass(frozen=True)
class WindowWords:
    """What decides a window on the device."""

    plan: WindowPlan
    variables: SlotVariables
    accepted: torch.Tensor  # int32 [segments]
    results: WindowResults


def build_variants(
    buffers: Buffers, words: WindowWords, chosen: ChosenTokens, most_drafts: int
) -> Mapping[Variant, Program]:
    """Of a bucket: all variants that its part of a model has. Launches nothing."""
    rows, accepted = buffers.rows, words.accepted
    longest = min(rows.count, 1 + most_drafts)
    # A reply's only row becomes state, as `accept_rows` does it, unless it has no numbers and the request fails.
    by_device = build_program(buffers, SegmentLengths(longest, certain=1), accepted)
    by_host = build_program(buffers, SegmentLengths(rows.count), accepted)  # who may take none
    taking_all = build_program(buffers, SegmentLengths(rows.count, certain=rows.count), rows.segment_counts)
    begin = _launch("begin", partial(begin_window, words.plan, words.variables, rows))
    accept = _launch("accept", partial(accept_rows, chosen, rows, words.plan, words.variables, accepted, words.results))
    computed, taken = [begin, *by_device.layers, *by_device.head], [accept, *by_device.commit]
    variants: dict[Variant, Program] = {
        Variant.FORWARD: [*by_host.layers, *by_host.head],
        Variant.COMMIT: by_host.commit,
        Variant.READ: [*taking_all.layers, *taking_all.commit],
    }
    if not buffers.model.is_last:
        return variants | {Variant.WINDOW: computed, Variant.TAKE: taken}
    choice = buffers.logits, rows, words.variables, ChoiceScratch.empty(rows.count, rows.tokens.device), chosen
    choose = _launch("choose", partial(choose_tokens, *choice))
    choose_unfiltered = _launch("choose", partial(choose_unfiltered_tokens, *choice))
    return variants | {
        Variant.WINDOW: [*computed, choose, *taken],
        Variant.UNFILTERED_WINDOW: [*computed, choose_unfiltered, *taken],
    }


def _launch(step: str, run: partial[None]) -> Launch:
    return Launch(None, "window", step, run)
