"""The shipped model in a form that trains fast: flat rows, dense experts under a mask, one compiled graph per part.

Knows the maths of `qwen4_exp` with gradients; parameters carry the hub's names. Knows no data and no optimizer. Its
outputs are held against the package's own family in tests/training.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.delta_rule import gated_delta_rule
from training.indexer import IndexerTargets, attention_mask, indexer_loss
from training.recipe import PocketShape

LOW = torch.bfloat16  # operand type of matrix products on a GPU


@dataclass(frozen=True)
class Rows:
    """What the layers know of a batch of flat rows besides the streams."""

    length: int  # rows of one sequence
    position: Tensor  # [rows] int64, position in the sequence
    offsets: Tensor  # [sequences + 1, padded] int32: first chunk of 64 of each sequence
    cosine: Tensor  # [rows, 1, rotary / 2]
    sine: Tensor
    drop: Tensor  # [rows, 1] dropout probability of a row
    sparse: bool
    targets: IndexerTargets | None  # which rows train the indexer, if any


@dataclass
class Extras:
    """Sums that layers add to while they run."""

    balance: Tensor
    router_z: Tensor
    indexer: Tensor
    usage: list[Tensor]  # per layer [experts]: share of rows that chose each expert


def matrix(inputs: Tensor, weight: Tensor) -> Tensor:
    """inputs [rows, K] x weight [N, K]^T in the low type on a GPU, in the inputs' type on a CPU."""
    kind = LOW if inputs.is_cuda else inputs.dtype
    return F.linear(inputs.to(kind), weight.to(kind))


def unit(x: Tensor, epsilon: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def shifted(x: Tensor, by: int, position: Tensor) -> Tensor:
    """Row t holds row t - by of its own sequence, or zeros. x [rows, channels]."""
    if by == 0:
        return x
    moved = F.pad(x, (0, 0, by, 0))[: x.shape[0]]
    return torch.where((position >= by).unsqueeze(-1), moved, torch.zeros_like(moved))


def causal_convolution(x: Tensor, taps: Tensor, position: Tensor, dilation: int = 1) -> Tensor:
    """x [rows, channels], taps [channels, 1, kernel], the last tap on the row itself."""
    kernel = taps.shape[-1]
    total = x * taps[:, 0, kernel - 1]
    for back in range(1, kernel):
        total = total + shifted(x, back * dilation, position) * taps[:, 0, kernel - 1 - back]
    return total


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first 2 * half values of every head. x [rows, heads, width], cosine and sine [rows, 1, half]."""
    half = cosine.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), -1)


def dropped(x: Tensor, probability: Tensor, training: bool) -> Tensor:
    if not training:
        return x
    keep = torch.rand_like(x, dtype=torch.float32) >= probability
    return x * keep / (1 - probability)


class Weight(nn.Module):
    """A bare `weight` parameter under a name of its own."""

    def __init__(self, *shape: int, deviation: float = 0.0, fill: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape) * deviation if deviation else torch.full(shape, fill))


def projection(outputs: int, inputs: int, scale: float = 1.0) -> Weight:
    return Weight(outputs, inputs, deviation=scale * inputs**-0.5)


class GatedResidual(nn.Module):
    """Reads one hidden row out of the residual streams and says how strongly each stream takes the answer."""

    def __init__(self, shape: PocketShape, inject: bool) -> None:
        super().__init__()
        wide = shape.num_streams * shape.hidden
        self.streams, self.epsilon = shape.num_streams, shape.norm_epsilon
        self.hc_norm = Weight(wide)
        self.input_mix_weight_down = projection(shape.stream_rank, wide)
        self.input_mix_weight_up = projection(wide, shape.stream_rank)
        self.block_inject_weight = projection(shape.num_streams, wide) if inject else None

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor | None]:
        """streams [rows, streams, hidden] -> hidden [rows, hidden], inject [rows, streams]."""
        normed = unit(streams, self.epsilon) * (1 + self.hc_norm.weight.view(self.streams, -1))
        flat = normed.flatten(1)
        low = F.silu(matrix(flat, self.input_mix_weight_down.weight) / self.streams)
        gate = torch.sigmoid(matrix(low, self.input_mix_weight_up.weight)).view_as(normed)
        mixed = (gate * normed).mean(1)
        if self.block_inject_weight is None:
            return mixed, None
        return mixed, 2 * torch.sigmoid(matrix(flat, self.block_inject_weight.weight).float() / self.streams)


def inject(streams: Tensor, answer: Tensor, weights: Tensor | None) -> Tensor:
    assert weights is not None
    return streams + answer.float().unsqueeze(1) * weights.unsqueeze(-1)


class DeltaNet(nn.Module):
    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.shape = shape
        keys, values = shape.delta_key_heads * shape.delta_head, shape.delta_value_heads * shape.delta_head
        self.in_proj_qkv = projection(2 * keys + values, shape.hidden)
        self.in_proj_z = projection(values, shape.hidden)
        self.in_proj_b = projection(shape.delta_value_heads, shape.hidden)
        self.in_proj_a = projection(shape.delta_value_heads, shape.hidden, scale=0.3)
        self.conv1d = Weight(2 * keys + values, 1, shape.conv_kernel, deviation=shape.conv_kernel**-0.5)
        self.A_log = nn.Parameter(torch.empty(shape.delta_value_heads).uniform_(1, 16).log())
        step = torch.exp(torch.empty(shape.delta_value_heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = Weight(shape.delta_head, fill=1.0)
        self.out_proj = projection(shape.hidden, values, scale=0.5)

    def forward(self, hidden: Tensor, rows: Rows) -> Tensor:
        shape = self.shape
        count, groups = hidden.shape[0], shape.delta_value_heads // shape.delta_key_heads
        mixed = matrix(hidden, self.in_proj_qkv.weight).float()
        mixed = F.silu(causal_convolution(mixed, self.conv1d.weight, rows.position))
        keys = shape.delta_key_heads * shape.delta_head
        query, key, value = mixed.split((keys, keys, shape.delta_value_heads * shape.delta_head), -1)

        def heads(x: Tensor) -> Tensor:
            x = x.view(count, -1, shape.delta_head)
            x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
            return x.repeat_interleave(groups, dim=1)

        beta = torch.sigmoid(matrix(hidden, self.in_proj_b.weight).float())
        step = F.softplus(matrix(hidden, self.in_proj_a.weight).float() + self.dt_bias)
        value = value.reshape(count, -1, shape.delta_head)
        output = gated_delta_rule(heads(query), heads(key), value, -self.A_log.exp() * step, beta, rows.offsets)
        gate = torch.sigmoid(matrix(hidden, self.in_proj_z.weight).float()).view_as(output)
        output = unit(output, shape.norm_epsilon) * self.norm.weight * gate
        return matrix(output.flatten(1), self.out_proj.weight)


class Indexer(nn.Module):
    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.index_qk_proj = projection((shape.index_heads + 1) * shape.index_head, shape.hidden)
        self.q_layernorm = Weight(shape.index_head)
        self.k_layernorm = Weight(shape.index_head)


class Attention(nn.Module):
    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.shape = shape
        wide = shape.attention_heads * shape.attention_head
        self.q_proj = projection(2 * wide, shape.hidden)
        self.k_proj = projection(shape.attention_kv_heads * shape.attention_head, shape.hidden)
        self.v_proj = projection(shape.attention_kv_heads * shape.attention_head, shape.hidden)
        self.o_proj = projection(shape.hidden, wide, scale=0.5)
        self.q_norm, self.k_norm = Weight(shape.attention_head), Weight(shape.attention_head)
        self.indexer = Indexer(shape)

    def project(self, hidden: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        """-> query, key, value [rows, heads, 64], gate [rows, heads * 64], index query, raw index keys."""
        shape, count = self.shape, hidden.shape[0]
        both = matrix(hidden, self.q_proj.weight).view(count, shape.attention_heads, 2, shape.attention_head)
        query, gate = both.unbind(2)
        key = matrix(hidden, self.k_proj.weight).view(count, shape.attention_kv_heads, -1)
        value = matrix(hidden, self.v_proj.weight).view(count, shape.attention_kv_heads, -1)
        query = rotate(unit(query, shape.norm_epsilon) * (1 + self.q_norm.weight), rows.cosine, rows.sine)
        key = rotate(unit(key, shape.norm_epsilon) * (1 + self.k_norm.weight), rows.cosine, rows.sine)
        index = F.linear(hidden.detach().float(), self.indexer.index_qk_proj.weight).view(count, -1, shape.index_head)
        index_query = unit(index[:, :-1], shape.norm_epsilon) * (1 + self.indexer.q_layernorm.weight)
        index_query = rotate(index_query, rows.cosine, rows.sine)
        kind = LOW if hidden.is_cuda else hidden.dtype
        return query.to(kind), key.to(kind), value.to(kind), gate.flatten(1), index_query, index[:, -1]

    def pooled_keys(self, raw: Tensor, rows: Rows) -> Tensor:
        """Keys of complete blocks. raw [rows, index width] -> [rows / ratio, index width]."""
        shape = self.shape
        pooled = raw.view(-1, shape.index_ratio, shape.index_head).mean(1)
        pooled = unit(pooled, shape.norm_epsilon) * (1 + self.indexer.k_layernorm.weight)
        cosine, sine = rows.cosine[:: shape.index_ratio], rows.sine[:: shape.index_ratio]
        return rotate(pooled.unsqueeze(1), cosine, sine).squeeze(1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, length: int) -> Tensor:
        """Attention of flat rows within sequences of `length` rows -> [rows, heads * 64]."""
        heads = self.shape.attention_heads

        def split(x: Tensor) -> Tensor:
            x = x.view(-1, length, x.shape[1], x.shape[2]).transpose(1, 2)
            return x.expand(-1, heads, -1, -1)

        output = F.scaled_dot_product_attention(
            split(query), split(key), split(value), attn_mask=mask, is_causal=mask is None
        )
        return output.transpose(1, 2).reshape(query.shape[0], -1)

    def finish(self, attended: Tensor, gate: Tensor) -> Tensor:
        return matrix(attended * torch.sigmoid(gate), self.o_proj.weight)


class Experts(nn.Module):
    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        count, width, hidden = shape.num_experts, shape.expert_width, shape.hidden
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * width, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(count, hidden, width) * 0.5 * (8 * width) ** -0.5)


class SharedExpert(nn.Module):
    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.gate_proj = projection(shape.shared_width, shape.hidden)
        self.up_proj = projection(shape.shared_width, shape.hidden)
        self.down_proj = projection(shape.hidden, shape.shared_width, scale=0.5)


class Moe(nn.Module):
    """Every expert is computed for every row and masked: with 8 of 32 chosen, cheaper here than sorting rows."""

    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.shape = shape
        self.gate = projection(shape.num_experts, shape.hidden, scale=0.5)
        self.experts = Experts(shape)
        self.shared_expert = SharedExpert(shape)
        self.shared_expert_gate = projection(1, shape.hidden)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """-> answer [rows, hidden], balance loss, router z-loss, usage [experts]."""
        shape = self.shape
        logits = F.linear(hidden.float(), self.gate.weight)
        chances = logits.softmax(-1)
        best, chosen = chances.topk(shape.experts_per_token, -1)
        picked = torch.zeros_like(chances).scatter(-1, chosen, 1.0)
        weights = chances * picked / best.sum(-1, keepdim=True)
        usage = picked.mean(0) / shape.experts_per_token
        balance = shape.num_experts * (usage.detach() * chances.mean(0)).sum()
        router_z = logits.logsumexp(-1).square().mean()
        both = matrix(hidden, self.experts.gate_up_proj.flatten(0, 1))
        both = both.view(-1, shape.num_experts, 2, shape.expert_width)
        inner = F.silu(both[:, :, 0]) * both[:, :, 1] * weights.unsqueeze(-1).to(both.dtype)
        answer = matrix(inner.flatten(1), self.experts.down_proj.transpose(0, 1).flatten(1))
        shared = self.shared_expert
        inner = F.silu(matrix(hidden, shared.gate_proj.weight)) * matrix(hidden, shared.up_proj.weight)
        strength = torch.sigmoid(matrix(hidden, self.shared_expert_gate.weight))
        return answer + strength * matrix(inner, shared.down_proj.weight), balance, router_z, usage


class NgramTable(nn.Module):
    def __init__(self, shape: PocketShape, rows: int) -> None:
        super().__init__()
        self.ngram_embedding = Weight(rows, shape.ngram_width, deviation=0.2)


class NgramBlock(nn.Module):
    """Adds what the hashed two- and three-token history says to every stream."""

    def __init__(self, shape: PocketShape, table_rows: int) -> None:
        super().__init__()
        self.shape = shape
        wide = shape.num_streams * shape.hidden
        self.ple_embedding = NgramTable(shape, table_rows)
        self.key_proj = projection(wide, shape.ngram_embedding)
        self.value_proj = projection(shape.hidden, shape.ngram_embedding, scale=0.5)
        self.norm_key, self.norm_query, self.norm_conv = Weight(wide), Weight(wide), Weight(wide)
        self.conv1d = Weight(wide, 1, shape.conv_kernel, deviation=0.02)

    def forward(self, streams: Tensor, ngram_ids: Tensor, position: Tensor) -> Tensor:
        """streams [rows, streams, hidden], ngram_ids [rows, heads] -> what to add to the streams."""
        shape = self.shape
        embedding = F.embedding(ngram_ids, self.ple_embedding.ngram_embedding.weight).flatten(1)

        def normed(x: Tensor, weight: Tensor) -> Tensor:
            return unit(x.view_as(streams), shape.norm_epsilon) * (1 + weight.view(shape.num_streams, -1))

        key = normed(matrix(embedding, self.key_proj.weight), self.norm_key.weight)
        value = matrix(embedding, self.value_proj.weight).float()
        gate = (key * normed(streams, self.norm_query.weight)).sum(-1, keepdim=True) / math.sqrt(shape.hidden)
        gate = gate.abs().clamp_min(1e-6).sqrt() * gate.sign()
        gated = torch.sigmoid(gate) * value.unsqueeze(1)
        flat = normed(gated, self.norm_conv.weight).flatten(1)
        local = F.silu(causal_convolution(flat, self.conv1d.weight, position, dilation=shape.ngram_size))
        return gated + local.view_as(gated)


class Layer(nn.Module):
    def __init__(self, shape: PocketShape, kind: str, table_rows: int | None) -> None:
        super().__init__()
        self.attn_hyper_connection = GatedResidual(shape, inject=True)
        self.mlp_hyper_connection = GatedResidual(shape, inject=True)
        self.mlp = Moe(shape)
        self.linear_attn = DeltaNet(shape) if kind == "L" else None
        self.self_attn = Attention(shape) if kind == "A" else None
        self.ple = NgramBlock(shape, table_rows) if table_rows is not None else None

    def forward(self, streams: Tensor, rows: Rows, extras: Extras, ngram_ids: Tensor | None = None) -> Tensor:
        if self.self_attn is None:
            streams, *sums = self._delta_layer(streams, rows, ngram_ids, self.training)
        else:
            query, key, value, gate, index_query, raw, weights = self._before_attention(streams, rows)
            mask = None
            if rows.sparse or rows.targets is not None:
                blocks = self.self_attn.pooled_keys(raw, rows)
                if rows.targets is not None:
                    loss = indexer_loss(query, key, index_query, blocks, rows.length, rows.targets)
                    extras.indexer = extras.indexer + loss
                if rows.sparse:
                    mask = attention_mask(index_query, blocks, rows.length, self.self_attn.shape)
            attended = self.self_attn.attend(query, key, value, mask, rows.length)
            streams, *sums = self._after_attention(streams, attended, gate, weights, rows.drop, self.training)
        extras.balance = extras.balance + sums[0]
        extras.router_z = extras.router_z + sums[1]
        extras.usage.append(sums[2].detach())
        return streams

    def _delta_layer(
        self, streams: Tensor, rows: Rows, ngram_ids: Tensor | None, training: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert self.linear_attn is not None
        if self.ple is not None:
            assert ngram_ids is not None
            streams = streams + self.ple(streams, ngram_ids, rows.position)
        hidden, weights = self.attn_hyper_connection(streams)
        answer = dropped(self.linear_attn(hidden, rows), rows.drop, training)
        return self._experts(inject(streams, answer, weights), rows.drop, training)

    def _before_attention(self, streams: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        assert self.self_attn is not None
        hidden, weights = self.attn_hyper_connection(streams)
        return *self.self_attn.project(hidden, rows), weights

    def _after_attention(
        self, streams: Tensor, attended: Tensor, gate: Tensor, weights: Tensor, drop: Tensor, training: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert self.self_attn is not None
        answer = dropped(self.self_attn.finish(attended, gate), drop, training)
        return self._experts(inject(streams, answer, weights), drop, training)

    def _experts(self, streams: Tensor, drop: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        hidden, weights = self.mlp_hyper_connection(streams)
        answer, balance, router_z, usage = self.mlp(hidden)
        return inject(streams, dropped(answer, drop, training), weights), balance, router_z, usage
