"""The whole trainable model: embedding, layers, mixer, head, MTP unrolled, and the losses of one batch.

Knows flat token rows; knows no data source and no optimizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.indexer import IndexerTargets
from training.model import Extras, GatedResidual, Layer, Rows, Weight, matrix, projection, unit
from training.ngram import NgramHash
from training.recipe import PocketShape

MAX_SEQUENCES = 128  # entries of the padded table of sequence starts: its shape must not change between stages


@dataclass(frozen=True)
class Batch:
    """tokens [sequences, length + 2] int64, weight [sequences, length + 2] of a token as a target, drop [sequences]."""

    tokens: Tensor
    weight: Tensor
    drop: Tensor


@dataclass(frozen=True)
class Losses:
    """Means over a batch; `total` is what is minimised."""

    total: Tensor
    token: Tensor  # nats per counted target
    drafts: list[Tensor]  # the same for MTP step 1, 2, 3
    hits: list[Tensor]  # share of counted targets that the argmax of MTP step 1, 2, 3 gets right
    balance: Tensor
    indexer: Tensor
    usage: list[Tensor]


class MtpHead(nn.Module):
    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = Weight(shape.hidden)
        self.pre_fc_norm_hidden = Weight(shape.num_streams * shape.hidden)
        self.fc_embedding = projection(shape.hidden, shape.hidden)
        self.fc_hidden = projection(shape.hidden, shape.hidden)
        self.layers = nn.ModuleList([Layer(shape, "A", None)])
        self.hyper_connection_mixer = GatedResidual(shape, inject=False)
        self.epsilon = shape.norm_epsilon

    def streams(self, before: Tensor, embedding: Tensor) -> Tensor:
        """before [rows, streams, hidden], embedding of the next token [rows, hidden] -> the layer's input streams."""
        normed = unit(before.flatten(1), self.epsilon) * (1 + self.pre_fc_norm_hidden.weight)
        inner = matrix(normed.view(-1, embedding.shape[1]), self.fc_hidden.weight).float().view_as(before)
        outer = matrix(
            unit(embedding, self.epsilon) * (1 + self.pre_fc_norm_embedding.weight), self.fc_embedding.weight
        )
        return inner + outer.float().unsqueeze(1)


class Trunk(nn.Module):
    def __init__(self, shape: PocketShape, table_rows: int) -> None:
        super().__init__()
        self.embed_tokens = Weight(shape.vocabulary_size, shape.hidden, deviation=0.05)
        self.layers = nn.ModuleList(
            [
                Layer(shape, kind, table_rows if i == shape.ngram_layer else None)
                for i, kind in enumerate(shape.layer_kinds)
            ]
        )
        self.hyper_connection_mixer = GatedResidual(shape, inject=False)


def token_losses(hidden: Tensor, embedding: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy of every row against the tied head, and whether the argmax is right."""
    logits = matrix(hidden, embedding).float()
    return F.cross_entropy(logits, targets, reduction="none"), (logits.argmax(-1) == targets).float()


class PocketModel(nn.Module):
    """Parameters carry the hub's names: `model.layers.0...`, `mtp.layers.0...`."""

    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.shape = shape
        self.hash = NgramHash(shape)
        self.model = Trunk(shape, self.hash.padded_rows)
        self.mtp = MtpHead(shape)
        self.start_streams = self._start_streams
        self.token_losses = token_losses

    def compile(self, **options: object) -> None:
        """Compile every part whose shapes stay the same through all stages."""
        for layer in [*self.model.layers, *self.mtp.layers]:
            for name in ("_delta_layer", "_before_attention", "_after_attention"):
                setattr(layer, name, torch.compile(getattr(layer, name), dynamic=False))
        self.start_streams = torch.compile(self._start_streams, dynamic=False)
        for owner, name in ((self.mtp, "streams"), (self, "mixed")):
            setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False))
        self.token_losses = torch.compile(token_losses, dynamic=False)

    def rows(self, batch: Batch, sparse: bool, targets: IndexerTargets | None) -> Rows:
        shape, device = self.shape, batch.tokens.device
        sequences, length = batch.tokens.shape[0], batch.tokens.shape[1] - 2
        position = torch.arange(length, device=device).repeat(sequences)
        starts = torch.arange(MAX_SEQUENCES + 1, device=device).clamp_max(sequences) * (length // 64)
        half = torch.arange(0, shape.rotary, 2, device=device, dtype=torch.float32) / shape.rotary
        angles = position.float().view(-1, 1, 1) * (1.0 / shape.rope_theta**half)
        drop = batch.drop.repeat_interleave(length).unsqueeze(1)
        return Rows(length, position, starts.int(), angles.cos(), angles.sin(), drop, sparse, targets)

    def _start_streams(self, tokens: Tensor) -> Tensor:
        embedded = F.embedding(tokens, self.model.embed_tokens.weight)
        return embedded.unsqueeze(1).repeat(1, self.shape.num_streams, 1)

    def mixed(self, streams: Tensor, mixer: GatedResidual) -> Tensor:
        return mixer(streams)[0]

    def trunk(self, tokens: Tensor, rows: Rows, extras: Extras) -> Tensor:
        """tokens [rows] -> streams before the final mixer [rows, streams, hidden]."""
        streams = self.start_streams(tokens)
        ngram_ids = self.hash.ids(tokens.view(-1, rows.length)).flatten(0, 1)
        for index, layer in enumerate(self.model.layers):
            streams = layer(streams, rows, extras, ngram_ids if index == self.shape.ngram_layer else None)
        return streams

    def forward(
        self, batch: Batch, sparse: bool, targets: IndexerTargets | None, draft_steps: int, indexer_only: bool = False
    ) -> Losses:
        length = batch.tokens.shape[1] - 2
        rows = self.rows(batch, sparse, targets)
        zero = torch.zeros((), device=batch.tokens.device)
        extras = Extras(zero, zero, zero, [])
        now, ahead, beyond = (batch.tokens[:, i : i + length].flatten() for i in range(3))
        weight_ahead, weight_beyond = (batch.weight[:, i : i + length].flatten() for i in (1, 2))
        streams = self.trunk(now, rows, extras)
        embedding = self.model.embed_tokens.weight
        token, _ = self.token_losses(self.mixed(streams, self.model.hyper_connection_mixer), embedding, ahead)
        token = (token * weight_ahead).sum() / weight_ahead.sum()
        drafts, hits = [], []
        before = streams
        for step in range(draft_steps):
            before = self.mtp.layers[0](self.mtp.streams(before, F.embedding(ahead, embedding)), rows, extras)
            hidden = self.mixed(before, self.mtp.hyper_connection_mixer)
            each, hit = self.token_losses(hidden, embedding, beyond)
            counted = weight_beyond * (rows.position >= step)
            drafts.append((each * counted).sum() / counted.sum())
            hits.append(((hit * counted).sum() / counted.sum()).detach())
            moved = F.pad(before, (0, 0, 0, 0, 1, 0))[:-1]
            before = torch.where((rows.position > 0).view(-1, 1, 1), moved, streams)
        layers = len(extras.usage)
        if indexer_only:
            total = extras.indexer / layers
        else:
            total = token + 0.01 * extras.balance / layers + 1e-4 * extras.router_z + 0.1 * extras.indexer
            if drafts:
                total = total + 0.3 * torch.stack(drafts).mean()
        return Losses(
            total,
            token.detach(),
            [d.detach() for d in drafts],
            hits,
            (extras.balance / layers).detach(),
            extras.indexer.detach(),
            extras.usage,
        )

    def wrong_tokens(self, batch: Batch, sparse: bool) -> Tensor:
        """[sequences, length] bool: the row's argmax is not the next token, where that token counts."""
        length = batch.tokens.shape[1] - 2
        zero = torch.zeros((), device=batch.tokens.device)
        rows = self.rows(batch, sparse, None)
        streams = self.trunk(batch.tokens[:, :length].flatten(), rows, Extras(zero, zero, zero, []))
        hidden = self.mixed(streams, self.model.hyper_connection_mixer)
        _, hit = self.token_losses(hidden, self.model.embed_tokens.weight, batch.tokens[:, 1 : length + 1].flatten())
        return (hit == 0).view(-1, length) & (batch.weight[:, 1 : length + 1] > 0)

    def hub_tensors(self) -> Mapping[str, Tensor]:
        """Every tensor under its published name, buffers of the n-gram hash included."""
        tensors: dict[str, Tensor] = dict(self.named_parameters())
        prefix = f"model.layers.{self.shape.ngram_layer}.ple.ple_embedding."
        tensors[prefix + "layer_multipliers"] = self.hash.multipliers.cpu()
        tensors[prefix + "ngram_heads_vocab_sizes"] = self.hash.sizes.cpu()
        tensors[prefix + "ngram_heads_offsets"] = self.hash.offsets.cpu()
        return tensors
