"""PLaMo 2 in plain torch, token by token, from the published description (arXiv:2509.04897)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.plain import PlainLlama


class Plamo2(PlainLlama):
    """State spaces in even layers, attention within a window in odd ones."""

    def __init__(self, tensors: Mapping[str, Tensor], config: Any) -> None:
        super().__init__(tensors, config)

    def block(self, layer: int, x: Tensor) -> Tensor:
        stem = f"model.layers.layers.{layer}"
        mix = self.attention if layer % 2 else self.state_space
        mixed = mix(f"{stem}.mixer", self.offset_norm(f"{stem}.pre_mixer_norm", x, 1.0))
        x = x + self.offset_norm(f"{stem}.post_mixer_norm", mixed, 1 / 5)
        fed = self.ffn(f"{stem}.mlp", self.offset_norm(f"{stem}.pre_mlp_norm", x, 1.0))
        return x + self.offset_norm(f"{stem}.post_mlp_norm", fed, 1 / 5**1.5)

    def offset_norm(self, name: str, x: Tensor, offset: float) -> Tensor:
        weight = self.tensors[f"{name}.weight"] + offset
        return self.rms(x, self.config.rms_norm_eps) * weight

    def rms(self, x: Tensor, eps: float) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()

    def norm(self, name: str, x: Tensor) -> Tensor:
        return self.offset_norm(name, x, 1.0)

    def ffn(self, stem: str, x: Tensor) -> Tensor:
        gate, up = self.linear(f"{stem}.gate_up_proj", x).chunk(2, -1)
        return self.linear(f"{stem}.down_proj", F.silu(gate) * up)

    def attention(self, stem: str, x: Tensor) -> Tensor:
        c, length = self.config, len(x)
        heads = self.linear(f"{stem}.qkv_proj", x).view(length, -1, c.hidden_size_per_head)
        counts = (c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads)
        query, key, value = (part.transpose(0, 1) for part in heads.split(counts, 1))
        query = self.place(self.rms(query, 1e-6) * self.tensors[f"{stem}.q_weight"][:, None])
        key = self.place(self.rms(key, 1e-6) * self.tensors[f"{stem}.k_weight"][:, None])
        group = len(query) // len(key)
        key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
        scores = query @ key.transpose(1, 2) / c.hidden_size_per_head**0.5
        seen = torch.ones(length, length).tril().triu(-c.attention_window_size).bool()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.linear(f"{stem}.o_proj", (weights @ value).transpose(0, 1).flatten(1))

    def state_space(self, stem: str, x: Tensor) -> Tensor:
        c, length = self.config, len(x)
        both = self.linear(f"{stem}.in_proj", x).view(length, c.mamba_num_heads, -1)
        gate, inputs = both.chunk(2, -1)
        padded = F.pad(inputs.flatten(1).T, (c.mamba_d_conv - 1, 0))
        taps = self.tensors[f"{stem}.conv1d.weight"]
        mixed = F.silu(F.conv1d(padded, taps, groups=len(taps)).T)
        size = c.mamba_d_state
        parts = self.linear(f"{stem}.bcdt_proj", mixed).split((size, size, self.step_rank), -1)
        write, read, step = (
            self.rms(part, c.rms_norm_eps) * self.tensors[f"{stem}.{name}_norm_weight"]
            for part, name in zip(parts, ("B", "C", "dt"), strict=True)
        )
        dt = F.softplus(self.linear(f"{stem}.dt_proj", step) + self.tensors[f"{stem}.dt_bias"])
        rate = -self.tensors[f"{stem}.A_log"].exp()
        heads = mixed.view(length, c.mamba_num_heads, -1)
        state, outputs = torch.zeros(heads.shape[1], heads.shape[2], size), list[Tensor]()
        for token in range(length):
            kept = (dt[token] * rate).exp()[:, None, None] * state
            state = kept + dt[token][:, None, None] * heads[token][..., None] * write[token]
            outputs.append(state @ read[token])
        scanned = torch.stack(outputs) + heads * self.tensors[f"{stem}.D"][:, None]
        return self.linear(f"{stem}.out_proj", (scanned * F.silu(gate)).flatten(1))

    @property
    def step_rank(self) -> int:
        return max(64, self.config.hidden_size // 16)

    def head(self, x: Tensor) -> Tensor:
        return x @ self.tensors["model.embed_tokens.weight"].T


def shapes(c: Any) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint."""
    inner, hidden, size = (
        c.mamba_num_heads * c.hidden_size_per_head,
        c.hidden_size,
        c.mamba_d_state,
    )
    rank, heads = max(64, hidden // 16), c.num_attention_heads
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(c.num_hidden_layers):
        stem = f"model.layers.layers.{layer}"
        for norm in ("pre_mixer", "post_mixer", "pre_mlp", "post_mlp"):
            found[f"{stem}.{norm}_norm.weight"] = (hidden,)
        found[f"{stem}.mlp.gate_up_proj.weight"] = (2 * c.intermediate_size, hidden)
        found[f"{stem}.mlp.down_proj.weight"] = (hidden, c.intermediate_size)
        dim, keys = c.hidden_size_per_head, c.num_key_value_heads
        if layer % 2:
            mixer = {
                "qkv_proj.weight": ((heads + 2 * keys) * dim, hidden),
                "o_proj.weight": (hidden, heads * dim),
                "q_weight": (heads, dim),
                "k_weight": (keys, dim),
            }
        else:
            mixer = {
                "in_proj.weight": (2 * inner, hidden),
                "conv1d.weight": (inner, 1, c.mamba_d_conv),
                "bcdt_proj.weight": (rank + 2 * size, inner),
                "dt_proj.weight": (c.mamba_num_heads, rank),
                "dt_bias": (c.mamba_num_heads,),
                "A_log": (c.mamba_num_heads,),
                "D": (c.mamba_num_heads,),
                "dt_norm_weight": (rank,),
                "B_norm_weight": (size,),
                "C_norm_weight": (size,),
                "out_proj.weight": (hidden, inner),
            }
        found |= {f"{stem}.mixer.{name}": shape for name, shape in mixer.items()}
    return found
