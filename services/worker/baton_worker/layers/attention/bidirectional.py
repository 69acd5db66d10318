"""Bidirectional attention over texts packed end to end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.attention.encoder_attention import EncoderAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.rope import rotate_
from baton_worker.layers.vision.bounded_linear import BoundedLinear


class Bidirectional(nn.Module):
    """softmax(scale * Q K^T) V over whole texts (Vaswani et al. 2017, arXiv:1706.03762); causal if
    the settings are a `spec.CausalAttention`."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self.settings, self.rope = settings, settings.rope
        self.attend = EncoderAttention(settings, context)
        query = settings.num_heads * settings.head_dim
        kv = settings.num_kv_heads * settings.head_dim
        parts = {"query": query, "key": kv, "value": kv}
        self.project = _linear(settings, hidden, parts, context)
        self.output = _linear(settings, query, {"output": hidden}, context)
        self.query_norm = self.key_norm = self.value_norm = None
        if settings.qk_norm is not None:
            self.query_norm, self.key_norm = _norms(settings, settings.qk_norm, context)
        if isinstance(settings, spec.NormedValueAttention):
            assert settings.qk_norm is not None
            unscaled = spec.Norm(settings.qk_norm.norm.eps, scaled=False)
            self.value_norm = norm(unscaled, settings.head_dim, "value", context)

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Tensor, residual: Tensor | None
    ) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`. `step.texts` holds the bounds of the
        texts."""
        settings = self.settings
        num_rotated = settings.num_heads + settings.num_kv_heads
        heads = self.project(x).view(x.shape[0], -1, settings.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            heads = self._normed(heads, self.query_norm, self.key_norm)
        if self.rope is not None:
            if self.rope.kind == "axial_halves":
                heads[:, :num_rotated] = _half_a_head_apart(heads[:, :num_rotated])
            rotate_(heads[:, :num_rotated], step.angles[self.rope])
        attended = self.attend(heads, step.texts, step.plans)
        out: Tensor = self.output(attended, residual)
        return out

    def _normed(self, heads: Tensor, query_norm: nn.Module, key_norm: nn.Module) -> Tensor:
        """Heads with their queries and keys normed."""
        sizes = [self.settings.num_heads, *[self.settings.num_kv_heads] * 2]
        query, key, value = torch.split(heads, sizes, dim=1)
        qk_norm, shape = self.settings.qk_norm, query.shape
        assert qk_norm is not None
        if qk_norm.over == "full":
            query, key = query.flatten(1), key.flatten(1)
        query, key = query_norm(query), key_norm(key)
        value = value if self.value_norm is None else self.value_norm(value)
        parts = (part.view(shape[0], -1, shape[2]) for part in (query, key, value))
        return torch.cat(tuple(parts), dim=1)


def _half_a_head_apart(heads: Tensor) -> Tensor:
    """Channels of heads whose pairs are within each half, one half for each axis, in an order where
    pairs are half a head apart. Scores are the same."""
    out: Tensor = heads.unflatten(-1, (2, 2, -1)).transpose(-3, -2).flatten(-3)
    return out


def _linear(
    settings: spec.Attention, inputs: int, parts: dict[str, int], context: BuildContext
) -> Linear | BoundedLinear:
    projections = settings.projections
    if projections.bounded:
        return BoundedLinear(inputs, parts, context)
    if "output" in parts:
        return Linear(inputs, parts, context, bias=projections.output_bias)
    return Linear(inputs, parts, context, bias=projections.bias, unbiased=projections.unbiased)


def _norms(
    settings: spec.Attention, qk_norm: spec.QkNorm, context: BuildContext
) -> tuple[nn.Module, nn.Module]:
    """The norms of queries and keys over each head or over all of them."""
    counts = (1, 1) if qk_norm.over == "head" else (settings.num_heads, settings.num_kv_heads)
    query, key = (
        norm(qk_norm.norm, count * settings.head_dim, f"{role}_norm", context)
        for role, count in zip(("query", "key"), counts, strict=True)
    )
    return query, key
