"""The draft layer of qwen4_exp written out row by row from its published description, in float64.

Shares no code with the package: tensors by name, loops, no state. Knows no test.
"""

import torch
import torch.nn.functional as F


class PlainMtp:
    """A text of rows; each `step` adds a row and gives its logits and streams."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: dict) -> None:
        self.t = {name: tensor.double() for name, tensor in tensors.items()}
        self.c = config
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.index_keys: list[torch.Tensor] = []

    def step(self, streams: torch.Tensor, next_token: int) -> tuple[torch.Tensor, torch.Tensor]:
        """streams [streams * hidden] at position i, the token at i + 1 -> (logits for i + 2, the layer's streams)."""
        t, hidden = self.t, self.c["hidden_size"]
        e = t["mtp.fc_embedding.weight"] @ self.norm(
            t["model.embed_tokens.weight"][next_token], "mtp.pre_fc_norm_embedding.weight"
        )
        h = self.norm(streams, "mtp.pre_fc_norm_hidden.weight")
        x = torch.cat([t["mtp.fc_hidden.weight"] @ part + e for part in h.split(hidden)])
        layer = "mtp.layers.0."
        mixed, strengths = self.residual(x, f"{layer}attn_hyper_connection.")
        x = self.add(x, self.attention(mixed, f"{layer}self_attn."), strengths)
        mixed, strengths = self.residual(x, f"{layer}mlp_hyper_connection.")
        x = self.add(x, self.experts(mixed, f"{layer}mlp."), strengths)
        final, _ = self.residual(x, "mtp.hyper_connection_mixer.")
        return t["model.embed_tokens.weight"] @ final, x

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / ((x**2).mean() + self.c["rms_norm_eps"]).sqrt() * (1 + self.t[name])

    def residual(self, x: torch.Tensor, prefix: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        t, streams, hidden = self.t, self.c["hc_count"], self.c["hidden_size"]
        parts = [part / ((part**2).mean() + self.c["rms_norm_eps"]).sqrt() for part in x.split(hidden)]
        normed = torch.cat(parts) * (1 + t[f"{prefix}hc_norm.weight"])
        low = F.silu(t[f"{prefix}input_mix_weight_down.weight"] @ normed / streams)
        gates = torch.sigmoid(t[f"{prefix}input_mix_weight_up.weight"] @ low)
        mixed = sum((gates * normed).split(hidden)) / streams
        inject = t.get(f"{prefix}block_inject_weight.weight")
        return mixed, None if inject is None else 2 * torch.sigmoid(inject @ normed / streams)

    def add(self, x: torch.Tensor, output: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
        parts = x.split(self.c["hidden_size"])
        return torch.cat([part + strength * output for part, strength in zip(parts, strengths, strict=True)])

    def rotate(self, x: torch.Tensor, position: int) -> torch.Tensor:
        rope = self.c["rope_parameters"]
        turned = int(self.c["head_dim"] * rope["partial_rotary_factor"])
        out, half = x.clone(), turned // 2
        for i in range(half):
            angle = torch.tensor(position / rope["rope_theta"] ** (2 * i / turned), dtype=torch.float64)
            out[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
            out[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin()
        return out

    def visible_cells(self, x: torch.Tensor, prefix: str, position: int) -> list[int]:
        """The cells that the indexer leaves to this row."""
        c, dim, ratio = self.c, self.c["indexer_head_dim"], self.c["indexer_compress_ratio"]
        *queries, key = (self.t[f"{prefix}index_qk_proj.weight"] @ x).split(dim)
        self.index_keys.append(key)
        queries = [self.rotate(self.norm(query, f"{prefix}q_layernorm.weight"), position) for query in queries]
        complete, scores = (position + 1) // ratio, []
        for block in range(complete):
            mean = sum(self.index_keys[block * ratio : (block + 1) * ratio]) / ratio
            block_key = self.rotate(self.norm(mean, f"{prefix}k_layernorm.weight"), block * ratio)
            scores.append(float(sum(torch.relu(query @ block_key) for query in queries)) / dim**0.5)
        best = sorted(range(complete), key=lambda block: (-scores[block], block))[: c["indexer_budget"] // ratio]
        chosen = [block * ratio + within for block in sorted(best) for within in range(ratio)]
        return chosen + list(range(complete * ratio, position + 1))

    def attention(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        c, t, dim, position = self.c, self.t, self.c["head_dim"], len(self.keys)
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        keys = [self.norm(key, f"{prefix}k_norm.weight") for key in (t[f"{prefix}k_proj.weight"] @ x).split(dim)]
        self.keys.append(torch.stack([self.rotate(key, position) for key in keys]))
        self.values.append((t[f"{prefix}v_proj.weight"] @ x).view(kv_heads, dim))
        cells, outputs = self.visible_cells(x, f"{prefix}indexer.", position), []
        for head, packed in enumerate((t[f"{prefix}q_proj.weight"] @ x).split(2 * dim)):
            query = self.rotate(self.norm(packed[:dim], f"{prefix}q_norm.weight"), position)
            kv_head = head // (heads // kv_heads)
            scores = torch.stack([query @ self.keys[cell][kv_head] / dim**0.5 for cell in cells])
            shares = torch.softmax(scores, dim=0)
            mixed = sum(share * self.values[cell][kv_head] for share, cell in zip(shares, cells, strict=True))
            outputs.append(mixed * torch.sigmoid(packed[dim:]))
        return t[f"{prefix}o_proj.weight"] @ torch.cat(outputs)

    def experts(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        t, k = self.t, self.c["num_experts_per_tok"]
        shares = torch.softmax(t[f"{prefix}gate.weight"] @ x, dim=0)
        best = sorted(range(len(shares)), key=lambda expert: (-float(shares[expert]), expert))[:k]
        output = torch.zeros_like(x)
        for expert in best:
            gate, up = (t[f"{prefix}experts.gate_up_proj"][expert] @ x).chunk(2)
            weight = shares[expert] / shares[best].sum()
            output += weight * (t[f"{prefix}experts.down_proj"][expert] @ (F.silu(gate) * up))
        shared = f"{prefix}shared_expert."
        inner = F.silu(t[f"{shared}gate_proj.weight"] @ x) * (t[f"{shared}up_proj.weight"] @ x)
        gate = torch.sigmoid(t[f"{prefix}shared_expert_gate.weight"] @ x)
        return output + gate * (t[f"{shared}down_proj.weight"] @ inner)
