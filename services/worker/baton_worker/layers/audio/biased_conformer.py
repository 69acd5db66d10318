"""Blocks of Phi-4-multimodal's audio encoder: see `spec.BiasedConformer`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.conformer import ConformerBlock
from baton_worker.layers.audio.convolution import DepthwiseConv1d, Pointwise, SpectrogramConv2d
from baton_worker.layers.audio.relative_scores import distances, heads_of, joined
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned, Table
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import activation
from baton_worker.layers.norm import norm


def biased_block(settings: spec.BiasedConformer, context: BuildContext) -> ConformerBlock:
    """A block under the checkpoint's names."""
    return ConformerBlock(
        _FeedForward(settings, context.under("feed_forward_in")),
        _BiasedAttention(settings, context),
        _Convolution(settings, context.under("conv")),
        _FeedForward(settings, context.under("feed_forward_out")),
        norm(settings.norm, settings.hidden, "layer_norm", context),
    )


class BiasedStem(nn.Module):
    """A spectrogram to the input of the blocks: normed bins, convolutions and a projection."""

    def __init__(self, settings: spec.BiasedConformer, context: BuildContext) -> None:
        super().__init__()
        self.scale, bins = _BinScale(settings.bins, context), settings.bins
        wide, parts = settings.channels, list[nn.Module]()
        inner = context.under("embed.conv")
        parts.append(SpectrogramConv2d("0", 1, wide, inner))
        parts.append(nn.ReLU())
        for number in range(2, 3 * _halvings(settings) - 1, 3):
            parts.append(SpectrogramConv2d(f"{number}", wide, wide, inner, depthwise=True))
            parts.append(_plain_convolution(f"{number + 1}", wide, inner))
            parts.append(nn.ReLU())
        for _ in range(_halvings(settings)):
            bins = (bins - 1) // 2 + 1
        self.parts = nn.ModuleList(parts)
        self.project = Linear(wide * bins, {"embed.out": settings.hidden}, context, bias=True)

    def forward(self, frames: Tensor) -> Tensor:
        """[frames, bins] to [states, hidden]."""
        x = self.scale(frames)[None, None]
        for part in self.parts:
            x = part(x)
        out: Tensor = self.project(x[0].transpose(0, 1).flatten(1))
        return out


def _halvings(settings: spec.BiasedConformer) -> int:
    return int(math.log2(settings.reduction))


def _plain_convolution(name: str, channels: int, context: BuildContext) -> SpectrogramConv2d:
    return SpectrogramConv2d(
        name, channels, channels, context, size=(1, 1), stride=(1, 1), padding=(0, 0, 0, 0)
    )


class _BinScale(Layer):
    """(x - mean) / deviation of each bin, as measured in training."""

    def __init__(self, bins: int, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name("encoder_embedding")
        self.mean, self.inverse = context.empty(bins), context.empty(bins)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Means and inverse deviations."""
        yield f"{self._name}.global_mean", self.mean
        yield f"{self._name}.global_invstd", self.inverse

    def forward(self, x: Tensor) -> Tensor:
        """[frames, bins] to the same."""
        return (x - self.mean) * self.inverse


class DistanceBias(nn.Module):
    """Relative position biases: added by each head to the scores of keys, by distance, for all
    blocks."""

    def __init__(self, settings: spec.BiasedConformer, context: BuildContext) -> None:
        super().__init__()
        self._farthest, self._symmetric = settings.farthest, settings.symmetric
        rows = settings.farthest * (1 if settings.symmetric else 2)
        name = "relative_attention_bias_layer.bias_values"
        self.table = Table(rows, settings.num_heads, name, context)

    def forward(self, count: int, device: torch.device) -> Tensor:
        """[heads, count, count]."""
        distance = (-distances(count, device)).clamp(-self._farthest, self._farthest - 1)
        rows = distance.abs() if self._symmetric else distance + self._farthest
        bias: Tensor = self.table(rows.flatten())
        return torch.unflatten(bias.T, 1, (count, count))


class _FeedForward(nn.Module):
    def __init__(self, settings: spec.BiasedConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, wide = settings.hidden, settings.intermediate
        self.norm = norm(settings.norm, hidden, "layer_norm", context)
        self.up = Linear(hidden, {"gate_up_proj": 2 * wide}, context, bias=True)
        self.down = Linear(wide, {"down_proj": hidden}, context, bias=True)
        self._activation = activation(settings.activation)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        up, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        out: Tensor = self.down(up * self._activation(gate))
        return out


class _BiasedAttention(nn.Module):
    def __init__(self, settings: spec.BiasedConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, self._num_heads = settings.hidden, settings.num_heads
        self.norm = norm(settings.norm, hidden, "layer_norm_att", context)
        parts = {f"self_attn.{part}_proj": hidden for part in "qkv"}
        self.project = Linear(hidden, parts, context, bias=True)
        self.output = Linear(hidden, {"self_attn.o_proj": hidden}, context, bias=True)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[frames, hidden] and [heads, frames, frames] to [frames, hidden]."""
        parts = self.project(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (heads_of(part, self._num_heads)[None] for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])
        out: Tensor = self.output(joined(attended[0]))
        return out


class _Convolution(nn.Module):
    """Gate, depthwise and pointwise convolutions."""

    def __init__(self, settings: spec.BiasedConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, self._activation = settings.hidden, activation(settings.activation)
        self.norm = norm(settings.norm, hidden, "layer_norm", context)
        self.gate = Pointwise("glu.ext_pw_conv_1d", hidden, 2 * hidden, context)
        self.biases = nn.ModuleList(Learned((1, hidden, 1), f"glu.b{n}", context) for n in (1, 2))
        name = "dw_sep_conv_1d"
        self.depthwise = DepthwiseConv1d(
            f"{name}.dw_conv", hidden, settings.kernel, context, causal=True, bias=True
        )
        self.mix = Pointwise(f"{name}.pw_conv", hidden, hidden, context)
        self.out = Pointwise("ext_pw_conv_1d", hidden, hidden, context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        left, right = self.gate(self.norm(x)).chunk(2, dim=-1)
        first, second = (bias().flatten() for bias in self.biases)
        gated = (left + first) * self._activation(right + second)
        out: Tensor = self.out(self._activation(self.mix(self.depthwise(gated))))
        return out
