"""Puzzle's Llamas (arXiv:2411.19146): a layer may have other heads, or lack one of its halves."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.plain import PlainLlama


class DeciLm(PlainLlama):
    """What a layer has is what the checkpoint holds of it."""

    def block(self, layer: int, x: Tensor) -> Tensor:
        stem = f"model.layers.{layer}"
        if f"{stem}.self_attn.q_proj.weight" in self.tensors:
            x = x + self.attention(f"{stem}.self_attn", self.norm(f"{stem}.input_layernorm", x))
        if f"{stem}.mlp.up_proj.weight" in self.tensors:
            x = x + self.ffn(f"{stem}.mlp", self.norm(f"{stem}.post_attention_layernorm", x))
        return x
