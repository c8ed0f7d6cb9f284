"""Parts that families share, described to the C++ library from the torch twin's weights and a matrix reader.

Vectors (norms, taps, decays) are the twin's own tensors; matrices are named. Knows no family.
"""

from strata.models.blocks.attention import AttentionShape, AttentionWeights
from strata.models.blocks.gated_delta_net import DeltaNetShape, DeltaNetWeights
from strata.models.blocks.moe import MoeShape, MoeWeights
from strata.models.fast.matrices import MatrixReader
from strata.native import mixers


def describe_delta_net(
    reader: MatrixReader, weights: DeltaNetWeights, shape: DeltaNetShape, in_all: mixers.Matrices, out_name: str
) -> mixers.DeltaNet:
    """A gated delta net; `in_all` gives the outputs q, k, v, z, b, a."""
    return mixers.DeltaNet(
        in_all=in_all,
        out=reader.matrices(out_name),
        conv=reader.pointer(weights.conv),
        decay_rate=reader.pointer(weights.decay_rate),
        decay_bias=reader.pointer(weights.decay_bias),
        norm_scale=reader.pointer(weights.norm_scale),
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        conv_kernel=shape.conv_kernel,
        gate_is_sigmoid=shape.gate_activation == "sigmoid",
        eps=shape.eps,
    )


def describe_attention(
    reader: MatrixReader, weights: AttentionWeights, shape: AttentionShape, prefix: str
) -> mixers.Attention:
    """Plain causal attention; a family with an indexer fills the rest."""
    return mixers.Attention(
        qkv=reader.matrices(*(f"{prefix}{part}_proj.weight" for part in ("q", "k", "v"))),
        out=reader.matrices(f"{prefix}o_proj.weight"),
        query_scale=reader.pointer(weights.query_scale),
        key_scale=reader.pointer(weights.key_scale),
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        has_gate=shape.has_output_gate,
        eps=shape.eps,
    )


def describe_experts(reader: MatrixReader, weights: MoeWeights, shape: MoeShape, prefix: str) -> mixers.Mlp:
    """Routed experts and, where there is one, the shared expert."""
    layout, blobs = reader.experts(prefix)
    mlp = mixers.Mlp(
        router=reader.matrices(f"{prefix}gate.weight"),
        layout=layout,
        blobs=blobs,
        experts=shape.experts,
        per_token=shape.experts_per_token,
        normalize=shape.normalize_weights,
    )
    if weights.shared is not None:
        _fill_dense(reader, mlp, weights.shared.down.shape[1], f"{prefix}shared_expert.")
        if weights.shared_gate is not None:
            mlp.shared_gate = reader.pointer(weights.shared_gate.flatten())
    return mlp


def describe_dense_mlp(reader: MatrixReader, width: int, prefix: str) -> mixers.Mlp:
    """A gated MLP in place of experts."""
    mlp = mixers.Mlp()
    _fill_dense(reader, mlp, width, prefix)
    return mlp


def _fill_dense(reader: MatrixReader, mlp: mixers.Mlp, width: int, prefix: str) -> None:
    mlp.width = width
    mlp.gate_up = reader.matrices(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight")
    mlp.down = reader.matrices(f"{prefix}down_proj.weight")
