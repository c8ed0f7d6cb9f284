"""The trainable model and the package's own family give the same logits from the same tensors.

Knows both; knows no training. In float32 on the CPU, with norms and gates away from their starting values.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from strata.models.base import DraftRows, LogitRows, Segment
from strata.models.families import family_of
from strata.models.qwen4_exp import Qwen4Exp
from strata.weights.source import MemorySource
from training.language import Batch, PocketModel
from training.model import Extras
from training.recipe import PocketShape, hub_config

ROWS = 128
SHAPE = replace(PocketShape(), index_budget=32)  # exceeded after 32 rows: three quarters of the rows attend sparsely
LIMIT = 1e-4


class LowerIndexWins(TorchFunctionMode):
    """Settles ties of every top-k as the package does. torch.topk leaves them open, and the indexer's relu makes many
    scores exactly 0; the trainer takes whichever block comes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.Tensor.topk:
            return func(*args, **(kwargs or {}))
        values, indices = args[0].sort(dim=-1, descending=True, stable=True)
        return torch.return_types.topk((values[..., : args[1]], indices[..., : args[1]]))


@cache
def trained() -> PocketModel:
    """A model of the shipped shape with random parameters, none of them at a value that hides a part."""
    torch.manual_seed(5)
    model = PocketModel(SHAPE).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and not name.endswith(("A_log", "dt_bias")):
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "ngram_embedding" not in name:
                parameter.mul_(1.5)
    return model


@cache
def served() -> Qwen4Exp:
    config = hub_config(SHAPE)
    tensors = {name: tensor.detach() for name, tensor in trained().hub_tensors().items()}
    model = family_of(config).load(family_of(config).parse_config(config), MemorySource(tensors), torch.float32)
    assert isinstance(model, Qwen4Exp)
    return model


def text() -> Tensor:
    """Two more tokens than rows, as a batch has; an end-of-text inside, which cuts the n-gram history only."""
    tokens = torch.randint(1, SHAPE.vocabulary_size, (ROWS + 2,), generator=torch.Generator().manual_seed(3))
    tokens[[40, 41, 90]] = SHAPE.end_of_text
    return tokens


@torch.no_grad()
def trained_logits(tokens: Tensor, sparse: bool = True) -> tuple[Tensor, Tensor]:
    """(logits of the model, logits of the draft layer's first step), both [rows, vocabulary]."""
    model, zero = trained(), torch.zeros(())
    rows = model.rows(Batch(tokens[None], torch.ones(1, ROWS + 2), torch.zeros(1)), sparse, None)
    extras = Extras(zero, zero, zero, [])
    embedding = model.model.embed_tokens.weight
    with LowerIndexWins():
        streams = model.trunk(tokens[:ROWS], rows, extras)
        draft_streams = model.mtp.streams(streams, embedding[tokens[1 : ROWS + 1]])
        draft_streams = model.mtp.layers[0](draft_streams, rows, extras)
    hidden = model.mixed(streams, model.model.hyper_connection_mixer)
    draft_hidden = model.mixed(draft_streams, model.mtp.hyper_connection_mixer)
    return hidden @ embedding.T, draft_hidden @ embedding.T


def test_the_trainable_model_gives_the_logits_of_the_served_one() -> None:
    tokens = text()
    expected, _ = trained_logits(tokens)
    model = served()
    logits = model.read([Segment(model.new_state(), tokens[:ROWS])], LogitRows.ALL).logits
    assert logits.std() > 0.3  # of order 1, so that the limit means something
    assert (logits - expected).abs().max() <= LIMIT


def test_the_trainable_draft_layer_gives_the_logits_of_the_served_one() -> None:
    tokens = text()
    _, expected = trained_logits(tokens)
    model = served()
    head = model.draft_head
    assert head is not None
    hidden = model.read([Segment(model.new_state(), tokens[:ROWS])], LogitRows.NONE).hidden
    logits = head.read(DraftRows(head.new_state(), hidden, tokens[1 : ROWS + 1]), LogitRows.ALL).logits
    assert logits.std() > 0.3
    assert (logits - expected).abs().max() <= LIMIT


def test_the_index_budget_is_exceeded() -> None:
    """Otherwise the two tests above would say nothing about the indexer."""
    tokens = text()
    moved = (trained_logits(tokens)[0] - trained_logits(tokens, sparse=False)[0]).abs().amax(1)
    assert moved[: SHAPE.index_budget].max() == 0
    assert moved[SHAPE.index_budget + 4 :].max() > 100 * LIMIT


def test_sequences_of_a_batch_do_not_touch() -> None:
    """Flat rows of several sequences: each gives what it gives alone."""
    model, zero, length = trained(), torch.zeros(()), 64
    tokens = torch.stack([text()[:66], text()[60:126]])

    @torch.no_grad()
    def streams(batch: Tensor) -> Tensor:
        count = len(batch)
        rows = model.rows(Batch(batch, torch.ones_like(batch), torch.zeros(count)), True, None)
        with LowerIndexWins():
            return model.trunk(batch[:, :length].flatten(), rows, Extras(zero, zero, zero, []))

    alone = torch.cat([streams(one[None]) for one in tokens])
    assert (streams(tokens) - alone).abs().max() <= LIMIT
