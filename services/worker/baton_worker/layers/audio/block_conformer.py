"""Blocks of Granite Speech's audio encoder: see `spec.BlockConformer`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.batch_norm import BatchNorm
from baton_worker.layers.audio.conformer import ConformerBlock
from baton_worker.layers.audio.convolution import DepthwiseConv1d, Pointwise
from baton_worker.layers.audio.relative_scores import by_distance, distances, heads_of, joined
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.invariant import SILU
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm


def block_block(settings: spec.BlockConformer, context: BuildContext) -> ConformerBlock:
    """A block under the checkpoint's names."""
    return ConformerBlock(
        _FeedForward(settings, context.under("ff1")),
        _BlockAttention(settings, context.under("attn")),
        _Convolution(settings, context.under("conv")),
        _FeedForward(settings, context.under("ff2")),
        norm(settings.norm, settings.hidden, "post_norm", context),
    )


class _FeedForward(nn.Module):
    def __init__(self, settings: spec.BlockConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, wide = settings.hidden, settings.intermediate
        self.norm = norm(settings.norm, hidden, "pre_norm", context)
        self.up = Linear(hidden, {"up_proj": wide}, context, bias=True)
        self.down = Linear(wide, {"down_proj": hidden}, context, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        out: Tensor = self.down(SILU(self.up(self.norm(x))))
        return out


class _BlockAttention(nn.Module):
    """Attention within blocks, with a learned vector for each distance."""

    def __init__(self, settings: spec.BlockConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, wide = settings.hidden, settings.num_heads * settings.head_dim
        self._num_heads, self._block = settings.num_heads, settings.block
        self._farthest, self._scale = settings.farthest, settings.head_dim**-0.5
        self.norm = norm(settings.norm, hidden, "pre_norm", context)
        self.project = Linear(hidden, {"to_q": wide, "to_kv": 2 * wide}, context)
        self.output = Linear(wide, {"to_out": hidden}, context, bias=True)
        rows = 2 * settings.farthest + 1
        self.distances = Table(rows, settings.head_dim, "rel_pos_emb", context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        heads = self.project(self.norm(x))
        whole = len(x) // self._block * self._block
        parts = [self._within(heads[:whole], self._block)] if whole else []
        if rest := len(x) - whole:
            parts.append(self._within(heads[whole:], rest))
        out: Tensor = self.output(torch.cat(parts))
        return out

    def _within(self, heads: Tensor, size: int) -> Tensor:
        """Queries, keys and values side by side, [frames, 3 * width] in whole blocks of `size`, to
        [frames, width]."""
        parts = torch.unflatten(heads, 0, (-1, size)).chunk(3, dim=-1)
        query, key, value = (heads_of(part, self._num_heads) for part in parts)
        rows = distances(size, query.device) + self._farthest
        assert self.distances.weight is not None
        bias = by_distance(query, self.distances.weight, rows) * self._scale
        attended = F.scaled_dot_product_attention(query, key, value, bias, scale=self._scale)
        return joined(attended).flatten(0, 1)


class _Convolution(nn.Module):
    """Gate, depthwise convolution, norm and projection."""

    def __init__(self, settings: spec.BlockConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, wide = settings.hidden, settings.hidden * settings.expansion
        self.norm = norm(settings.norm, hidden, "norm", context)
        self.up = Pointwise("up_conv", hidden, 2 * wide, context)
        self.depthwise = DepthwiseConv1d(
            "depth_conv.conv", wide, settings.kernel, context, causal=False
        )
        self.batch_norm = BatchNorm("batch_norm", wide, context)
        self.down = Pointwise("down_conv", wide, hidden, context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        gated = F.glu(self.up(self.norm(x)), dim=-1)
        out: Tensor = self.down(SILU(self.batch_norm(self.depthwise(gated))))
        return out
