"""Blocks of Gemma 3n's audio encoder: see `spec.LocalConformer`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.conformer import ConformerBlock
from baton_worker.layers.audio.convolution import DepthwiseConv1d, SpectrogramConv2d
from baton_worker.layers.audio.relative_scores import by_distance, distances, heads_of, joined
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.invariant import SILU
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm

_LONGEST_PERIOD = 1.0e4
"""Of the sines that stand for distances."""


def local_block(settings: spec.LocalConformer, context: BuildContext) -> ConformerBlock:
    """A block under the checkpoint's names."""
    return ConformerBlock(
        _FeedForward(settings, context.under("ffw_layer_start")),
        _LocalAttention(settings, context.under("attention")),
        _LightConvolution(settings, context.under("lconv1d")),
        _FeedForward(settings, context.under("ffw_layer_end")),
        _ClampedNorm(settings, "norm", context),
        settings.half,
    )


class LocalStem(nn.Module):
    """A spectrogram to the input of the blocks: two convolutions and a projection."""

    def __init__(self, settings: spec.LocalConformer, context: BuildContext) -> None:
        super().__init__()
        bins, inputs, parts = settings.bins, 1, list[nn.Module]()
        sizes = zip(settings.channels, settings.sizes, settings.strides, strict=True)
        for number, (channels, size, stride) in enumerate(sizes):
            here = context.under(f"conv_{number}")
            padding = (1, 1, 0, size[0] - 1)
            parts.append(
                SpectrogramConv2d(
                    "conv", inputs, channels, here,
                    size=size, stride=stride, padding=padding, bias=False,
                )
            )  # fmt: skip
            parts.append(_CumulativeNorm(channels, settings.group_eps, here))
            inputs, bins = channels, (bins + 2 - size[1]) // stride[1] + 1
        self.parts = nn.ModuleList(parts)
        self.project = Linear(inputs * bins, {"input_proj_linear": settings.hidden}, context)

    def forward(self, frames: Tensor) -> Tensor:
        """[frames, bins] to [states, hidden]."""
        x = frames[None, None]
        for part in self.parts:
            x = part(x)
        out: Tensor = self.project(x[0].permute(1, 2, 0).flatten(1))
        return out


class _CumulativeNorm(nn.Module):
    """Frames minus the mean of all up to them, over their deviation from such means; then relu."""

    def __init__(self, channels: int, eps: float, context: BuildContext) -> None:
        super().__init__()
        self.scale, self._eps = Learned((channels,), "norm.weight", context), eps

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, frames, bins] to the same."""
        wide = x.to(torch.float32)
        numbers = torch.arange(1, x.shape[2] + 1, device=x.device) * (x.shape[1] * x.shape[3])
        mean = wide.sum((1, 3), keepdim=True).cumsum(2) / numbers[:, None]
        centered = wide - mean
        variance = centered.square().sum((1, 3), keepdim=True).cumsum(2) / numbers[:, None]
        normed = centered * torch.rsqrt(variance + self._eps) * self.scale().view(-1, 1, 1)
        return F.relu(normed.to(x.dtype))


class _ClampedNorm(nn.Module):
    """A norm of states within the limit."""

    def __init__(self, settings: spec.LocalConformer, role: str, context: BuildContext) -> None:
        super().__init__()
        self._limit, self.norm = settings.limit, norm(settings.norm, settings.hidden, role, context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        out: Tensor = self.norm(x.clamp(-self._limit, self._limit))
        return out


class _FeedForward(nn.Module):
    def __init__(self, settings: spec.LocalConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, wide = settings.hidden, settings.intermediate
        self.before = _ClampedNorm(settings, "pre_layer_norm", context)
        self.up = Linear(hidden, {"ffw_layer_1": wide}, context)
        self.down = Linear(wide, {"ffw_layer_2": hidden}, context)
        self.behind = _ClampedNorm(settings, "post_layer_norm", context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        out: Tensor = self.behind(self.down(SILU(self.up(self.before(x)))))
        return out


class _LightConvolution(nn.Module):
    def __init__(self, settings: spec.LocalConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, self._limit = settings.hidden, settings.limit
        self.before = norm(settings.norm, hidden, "pre_layer_norm", context)
        self.start = Linear(hidden, {"linear_start": 2 * hidden}, context)
        self.depthwise = DepthwiseConv1d(
            "depthwise_conv1d", hidden, settings.kernel, context, causal=True
        )
        self.norm = _ClampedNorm(settings, "conv_norm", context)
        self.end = Linear(hidden, {"linear_end": hidden}, context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        gated = F.glu(self.start(self.before(x)), dim=-1)
        out: Tensor = self.end(SILU(self.norm(self.depthwise(gated))))
        return out


class _LocalAttention(nn.Module):
    """Attention to near frames, with a score of each distance (Transformer-XL, Dai et al. 2019,
    arXiv:1901.02860)."""

    def __init__(self, settings: spec.LocalConformer, context: BuildContext) -> None:
        super().__init__()
        hidden, self._settings = settings.hidden, settings
        inner, table = context.under("attn"), "relative_position_embedding.pos_proj"
        self.before = _ClampedNorm(settings, "pre_attn_norm", context)
        self.project = Linear(hidden, {f"{part}_proj": hidden for part in "qkv"}, inner)
        self.distances = Linear(hidden, {table: hidden}, inner)
        self.scale = Learned((hidden // settings.num_heads,), "per_dim_scale", inner)
        self.output = Linear(hidden, {"post": hidden}, context)
        self.behind = _ClampedNorm(settings, "post_norm", context)

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden] to the same."""
        parts = self.project(self.before(x)).chunk(3, dim=-1)
        query, key, value = (heads_of(part, self._settings.num_heads) for part in parts)
        factor = F.softplus(self.scale()) / (math.log(2) * math.sqrt(query.shape[-1]))
        attended = self._shares(query * factor, key) @ value
        out: Tensor = self.behind(self.output(joined(attended)))
        return out

    def _shares(self, query: Tensor, key: Tensor) -> Tensor:
        """[heads, frames, frames]: how much each key counts for each query."""
        s = self._settings
        distance = distances(query.shape[1], query.device)
        rows = (distance + s.future).clamp(0, s.past + s.future)
        scores = query @ key.transpose(-1, -2) + by_distance(query, self._vectors(query), rows)
        scores = s.softcap * torch.tanh(scores / s.softcap)
        far = (distance > s.past) | (distance < -s.future)
        scores = scores.masked_fill(far, -math.inf)
        return scores.softmax(-1, dtype=torch.float32).to(query.dtype)

    def _vectors(self, like: Tensor) -> Tensor:
        """[heads, distances, dim]: a vector for each distance, from the farthest behind on."""
        s = self._settings
        count = s.hidden // 2
        step = math.log(_LONGEST_PERIOD) / max(count - 1, 1)
        periods = torch.exp(torch.arange(count, device=like.device) * -step)
        distance = torch.arange(-s.future, s.past + 1, device=like.device)
        phases = distance[:, None] * periods
        waves = torch.cat((phases.sin(), phases.cos()), dim=-1).to(like.dtype)
        return heads_of(self.distances(waves), s.num_heads)
