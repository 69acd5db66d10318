"""MiniCPM (arXiv:2404.06395) and Tele-FLM (arXiv:2404.16645): Llama with multipliers."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.plain import PlainLlama


class MiniCpm(PlainLlama):
    """Embeddings times 12, residuals times 1.4 / sqrt(layers), hidden states / (width / base)."""

    def embed(self, tokens: Tensor) -> Tensor:
        return self.config.scale_emb * super().embed(tokens)

    def block(self, layer: int, x: Tensor) -> Tensor:
        stem, depth = f"model.layers.{layer}", self.config.num_hidden_layers**0.5
        scale = self.config.scale_depth / depth
        x = x + scale * self.attention(f"{stem}.self_attn", self.norm(f"{stem}.input_layernorm", x))
        normed = self.norm(f"{stem}.post_attention_layernorm", x)
        return x + scale * self.ffn(f"{stem}.mlp", normed)

    def head(self, x: Tensor) -> Tensor:
        return super().head(x / (self.config.hidden_size / self.config.dim_model_base))


class TeleFlm(PlainLlama):
    """muP: embeddings times `input_mult`, logits times `output_mult / mup_scale_factor`."""

    def embed(self, tokens: Tensor) -> Tensor:
        return self.config.input_mult * super().embed(tokens)

    def head(self, x: Tensor) -> Tensor:
        return super().head(x) * self.config.output_mult / self.config.mup_scale_factor
