"""Models cut into stages beside the same models on one stage, and the windows that both are asked for. Knows no test.

On CPU tensors, over the torch road, unless a card is named: all stages are on the same device, and each has only its
own layers' state.
"""

from collections.abc import Sequence
from functools import cache

import torch

from strata.engine.chain import StageChain
from strata.engine.chain_stage import WindowStage
from strata.engine.graphs import WindowGraphs
from strata.engine.local_stage import RunStage
from strata.engine.stage import RowsPart, Stage, StageSizes
from strata.engine.stage_model import GroupStage, StageModel
from strata.engine.stage_programs import Variant
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.description import DeviceModel
from strata.models.device.layer_split import LayerSplit
from tests.engine.stages import CPU, described
from tests.random_text import token_ids_of

SIZES = StageSizes(slots=3, context=64, most_drafts=3)
MOST = 12  # rows of a window of theirs
BUCKETS = (1, 4, MOST)
LENGTHS = (5, 9, 3)  # of the text in front of each slot's reply
OPTIONS = (ChoiceOptions(), ChoiceOptions(inverse_temperature=1.1, seed=7, top_p=0.9, top_k=40), ChoiceOptions())
HOST_TURNS = ((1, 2), (3, 0), (2, 2))  # rows of slots 0 and 2 that become state, of 3 and 2


@cache
def parts_of(name: str, cuts: tuple[int, ...], device: torch.device = CPU) -> tuple[DeviceModel, ...]:
    """The model, described for a stage for each run of its layers."""
    built = described(name, device)[0]
    split = LayerSplit.of(len(built.layers), cuts)
    return describe_parts(built, split, [StagePlace(device)] * split.stages)


def chain_of(
    parts: Sequence[DeviceModel],
    sizes: StageSizes,
    buckets: Sequence[int] | None = None,
    beside: StageChain | None = None,
    group: int = 0,
) -> StageChain:
    """A stage for each part; with the slots of another chain's stages where one is given."""
    others = [None] * len(parts) if beside is None else beside.stages
    stages = [Stage(part, sizes, buckets, other) for part, other in zip(parts, others, strict=True)]
    return StageChain.of(stages, [WindowGraphs(stage).run for stage in stages], group)


def chain_model(
    name: str, cuts: tuple[int, ...], slots: int = 2, context: int = 512, groups: int = 1, device: torch.device = CPU
) -> StageModel:
    """The model over a chain with empty slots; a chain more for each further group."""
    built, parts = described(name, device)[0], parts_of(name, cuts, device)
    sizes = StageSizes(slots, context)
    first = chain_of(parts, sizes)
    others = [chain_of(parts, sizes, beside=first, group=group) for group in range(1, groups)]
    beside = [GroupStage(chain, chain.run) for chain in others]
    return StageModel(first, first.run, built.config, built.experts_per_row, other_groups=beside)


def states_of(stages: Sequence[Stage]) -> list[torch.Tensor]:
    """The state of all layers of a model as one stage would have it, but for tensors without a value.

    The history is that of the first stage which keeps one.
    """
    states = [stage.state for stage in stages]
    keeping = [state for state in states if state.sizes.ngram_layers]
    by_layer = zip(*(state.tensors[:-2] for state in states), strict=True)
    found = [[tensor for tensor in tensors if tensor.numel()] for tensors in by_layer]
    found += [[state.history for state in keeping[:1]], [state.ngram_tail for state in keeping]]
    return [torch.cat([tensor.cpu() for tensor in tensors]) for tensors in found if tensors]


def begin_replies(stage: WindowStage, run: RunStage) -> None:
    """In every slot, behind a text of its own."""
    for slot, length in enumerate(LENGTHS):
        text = token_ids_of(length, slot)
        stage.set_rows(MOST, [RowsPart(slot, 0, text[:-1])])
        run(Variant.READ, MOST)
        stage.set_reply(slot, ReplyStart(length - 1, text[-1], 50, (), OPTIONS[slot]))


def run_window(stage: WindowStage, run: RunStage, serial: int, parts: Sequence[PlannedPart]) -> torch.Tensor:
    """One window that chooses its own tokens, launched; its results, which are there when it has ended."""
    stage.set_plan(serial, parts)
    run(stage.window_variant(part.slot for part in parts), MOST)
    return stage.results.words.clone()


def tokens_of(stage: WindowStage, words: torch.Tensor) -> list[tuple[int, ...]]:
    """What each segment of a window got."""
    _, parts = read_results(words.tolist(), stage.results.segments, stage.results.most_drafts)
    return [part.tokens for part in parts]


def windows_with_drafts(stage: WindowStage, run: RunStage, right: Sequence[int]) -> list[torch.Tensor]:
    """Results of windows of all slots in several orders. right: what slot 0 gets next, of which some are its drafts."""
    drafts = (right[:1], (), [*right[3:5], right[5] ^ 1], [right[6] ^ 1], ())
    found = []
    for serial, each in enumerate(drafts, start=1):
        parts = [PlannedPart(1, (5, 6)), PlannedPart(0, tuple(each)), PlannedPart(2, (7,) * (serial % 3))]
        found.append(run_window(stage, run, serial, parts).cpu())
    return found


def next_tokens(stage: WindowStage, run: RunStage) -> list[int]:
    """Of slot 0, window by window; its reply goes on behind them."""
    windows = (run_window(stage, run, 1, [PlannedPart(0)]) for _ in range(7))
    return [tokens_of(stage, words)[0][0] for words in windows]


def windows_of_host(stage: WindowStage, run: RunStage) -> list[torch.Tensor]:
    """Logits of windows, of whose rows the host takes some, all or none. They begin where the texts end."""
    found, starts = [], [LENGTHS[0] - 1, LENGTHS[2] - 1]
    for slot in range(SIZES.slots):
        stage.end_reply(slot)
    for accepted in HOST_TURNS:
        stage.set_rows(MOST, [RowsPart(0, starts[0], [7, 8, 9]), RowsPart(2, starts[1], [3, 4])])
        run(Variant.FORWARD, MOST)
        found.append(stage.logits_on_host(MOST, 0, 5))
        stage.set_accepted(accepted)
        run(Variant.COMMIT, MOST)
        starts = [start + rows for start, rows in zip(starts, accepted, strict=True)]
    return found


def every_window(stage: WindowStage, run: RunStage, right: Sequence[int]) -> list[torch.Tensor]:
    """Replies from their begin, by the device, then by the host. right: see `windows_with_drafts`."""
    begin_replies(stage, run)
    return [*windows_with_drafts(stage, run, right), *windows_of_host(stage, run)]
