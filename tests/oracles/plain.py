"""A dense Llama in plain torch: the part that the oracles of this folder share.

One sequence, no cache, no batch: every line is a formula of a paper. It works on tensors under
their Hugging Face names; an oracle overrides the step in which its architecture differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainLlama:
    """Token ids to logits of all positions."""

    def __init__(self, tensors: Mapping[str, Tensor], config: Any) -> None:
        self.tensors, self.config = tensors, config

    def __call__(self, tokens: list[int]) -> Tensor:
        """float32 logits [tokens, vocab]."""
        return self.head(self.hidden(torch.tensor(tokens)))

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states [tokens, hidden], after the final norm."""
        x = self.embed(tokens)
        for layer in range(self.config.num_hidden_layers):
            x = self.block(layer, x)
        return self.norm("model.norm", x)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.tensors["model.embed_tokens.weight"][tokens]

    def block(self, layer: int, x: Tensor) -> Tensor:
        stem = f"model.layers.{layer}"
        x = x + self.attention(f"{stem}.self_attn", self.norm(f"{stem}.input_layernorm", x))
        return x + self.ffn(f"{stem}.mlp", self.norm(f"{stem}.post_attention_layernorm", x))

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return x * scale * self.tensors[f"{name}.weight"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def ffn(self, stem: str, x: Tensor) -> Tensor:
        gate = F.silu(self.linear(f"{stem}.gate_proj", x))
        return self.linear(f"{stem}.down_proj", gate * self.linear(f"{stem}.up_proj", x))

    def attention(self, stem: str, x: Tensor) -> Tensor:
        dim = self.config.hidden_size // self.config.num_attention_heads
        query, key, value = (
            self.linear(f"{stem}.{part}_proj", x).view(len(x), -1, dim).transpose(0, 1)
            for part in "qkv"
        )
        query, key = self.place(query), self.place(key)
        group = len(query) // len(key)
        key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
        scores = query @ key.transpose(1, 2) / dim**0.5 + self.bias(len(query), len(x))
        mask = torch.ones(len(x), len(x)).tril().bool()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.linear(f"{stem}.o_proj", (weights @ value).transpose(0, 1).flatten(1))

    def place(self, heads: Tensor) -> Tensor:
        """The rotation of [heads, tokens, dim]."""
        dim = heads.shape[-1]
        frequencies = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.outer(torch.arange(heads.shape[1]).float(), frequencies)
        first, second = heads.chunk(2, -1)
        return torch.cat(
            (
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            ),
            -1,
        )

    def bias(self, num_heads: int, length: int) -> Tensor:
        """What is added to the scores [heads, queries, keys]."""
        return torch.zeros(num_heads, 1, 1)

    def head(self, x: Tensor) -> Tensor:
        return x @ self.tensors["lm_head.weight"].T
