"""Blocks of MobileNetV4 and V5: see `spec.MobileTower`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.layer import Layer
from baton_worker.layers.norm import norm

_EPS = 1e-6


class Convolution(Layer):
    """A convolution with windows of `size` x `size`, to a `stride`-th of height and width, rounded
    up; zeros around, more of them to the right and below."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        context: BuildContext,
        *,
        size: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self._name, self._size, self._stride = context.name(name), size, stride
        self._groups = groups
        self.weight = context.empty(outputs, inputs // groups, size, size)
        self.bias = context.empty(outputs) if bias else None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Weight, and bias if there is one."""
        yield f"{self._name}.weight", self.weight
        if self.bias is not None:
            yield f"{self._name}.bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        tall, wide = (self._missing(side) for side in x.shape[2:])
        x = F.pad(x, (wide // 2, wide - wide // 2, tall // 2, tall - tall // 2))
        return F.conv2d(x, self.weight, self.bias, self._stride, groups=self._groups)

    def _missing(self, side: int) -> int:
        last = (-(-side // self._stride) - 1) * self._stride
        return max(0, last + self._size - side)


class ChannelNorm(nn.Module):
    """RMS norm over the channels of each place, and GELU if `active`."""

    def __init__(
        self, name: str, width: int, context: BuildContext, *, active: bool = False
    ) -> None:
        super().__init__()
        self._active = active
        self.norm = norm(spec.Norm(_EPS), width, name, context)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] to the same."""
        normed = self.norm(x.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)
        return F.gelu(normed, approximate="tanh") if self._active else normed


def normed(
    name: str, inputs: int, outputs: int, context: BuildContext, *, active: bool = False, **how: Any
) -> nn.Sequential:
    """A convolution and the norm of its output."""
    here = replace(context, name=lambda part: context.name(f"{name}.{part}"))
    return nn.Sequential(
        Convolution("conv", inputs, outputs, here, **how),
        ChannelNorm("bn", outputs, here, active=active),
    )


class EdgeBlock(nn.Module):
    """See `spec.EdgeBlock`."""

    def __init__(self, settings: spec.EdgeBlock, inputs: int, context: BuildContext) -> None:
        super().__init__()
        wide, width = inputs * settings.expansion, settings.width
        size, stride = settings.kernel, settings.stride
        self._skips = inputs == width and stride == 1
        self.steps = nn.Sequential(
            Convolution("conv_exp", inputs, wide, context, size=size, stride=stride),
            ChannelNorm("bn1", wide, context, active=True),
            Convolution("conv_pwl", wide, width, context),
            ChannelNorm("bn2", width, context),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, width, H / stride, W / stride]."""
        out: Tensor = self.steps(x)
        return x + out if self._skips else out


class InvertedBlock(nn.Module):
    """See `spec.InvertedBlock`; each channel of the output has a learned factor."""

    def __init__(self, settings: spec.InvertedBlock, inputs: int, context: BuildContext) -> None:
        super().__init__()
        wide, width, stride = inputs * settings.expansion, settings.width, settings.stride
        self._skips = inputs == width and stride == 1
        steps = list[nn.Module]()
        if size := settings.first:
            options: dict[str, Any] = {
                "size": size,
                "groups": inputs,
                "stride": 1 if settings.middle else stride,
            }
            steps.append(normed("dw_start", inputs, inputs, context, **options))
        steps.append(normed("pw_exp", inputs, wide, context, active=True))
        if size := settings.middle:
            options = {"size": size, "groups": wide, "stride": stride}
            steps.append(normed("dw_mid", wide, wide, context, active=True, **options))
        steps.append(normed("pw_proj", wide, width, context))
        self.steps = nn.Sequential(*steps)
        self.factors = Learned((width,), "layer_scale.gamma", context)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, width, H / stride, W / stride]."""
        out: Tensor = self.steps(x) * self.factors()[:, None, None]
        return x + out if self._skips else out


class QueryBlock(nn.Module):
    """See `spec.QueryBlock`; each channel of the output has a learned factor."""

    def __init__(self, settings: spec.QueryBlock, inputs: int, context: BuildContext) -> None:
        super().__init__()
        self._heads, dim = settings.num_heads, settings.head_dim
        self.norm = ChannelNorm("norm", inputs, context)
        self.query = Convolution("attn.query.proj", inputs, self._heads * dim, context)
        self.key, self.value = (
            self._fewer(settings, f"attn.{role}", inputs, context) for role in ("key", "value")
        )
        self.output = Convolution("attn.output.proj", self._heads * dim, settings.width, context)
        self.factors = Learned((settings.width,), "layer_scale.gamma", context)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to the same."""
        normed_x = self.norm(x)
        query = torch.unflatten(self.query(normed_x).flatten(2), 1, (self._heads, -1)).transpose(
            2, 3
        )
        key, value = (
            part(normed_x).flatten(2).transpose(1, 2)[:, None].expand(-1, self._heads, -1, -1)
            for part in (self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        heads = attended.transpose(2, 3).flatten(1, 2).view(len(x), -1, *x.shape[2:])
        out: Tensor = x + self.output(heads) * self.factors()[:, None, None]
        return out

    def _fewer(
        self, settings: spec.QueryBlock, name: str, inputs: int, context: BuildContext
    ) -> nn.Sequential:
        steps = list[nn.Module]()
        if settings.stride > 1:
            options: dict[str, Any] = {
                "size": settings.kernel,
                "stride": settings.stride,
                "groups": inputs,
            }
            steps.append(Convolution(f"{name}.down_conv", inputs, inputs, context, **options))
            steps.append(ChannelNorm(f"{name}.norm", inputs, context))
        return nn.Sequential(
            *steps, Convolution(f"{name}.proj", inputs, settings.head_dim, context)
        )


BLOCKS: dict[type, type[nn.Module]] = {
    spec.EdgeBlock: EdgeBlock,
    spec.InvertedBlock: InvertedBlock,
    spec.QueryBlock: QueryBlock,
}
