"""Fourier position embedding: each channel's rotation mixes several frequencies.

FoPE (Hua et al. 2024, arXiv:2412.17739). Frequencies too low to be learned are dropped: their
channels have frequency zero and are not rotated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.rope.rope import FREQUENCIES, Angles


class Fourier(Layer):
    """Positions to angles per head, with one matrix each for cos and sin, shared or per KV head."""

    def __init__(self, settings: spec.FourierRope, context: BuildContext) -> None:
        super().__init__()
        if settings.kind != "default":
            raise ModelError(f"FoPE on top of '{settings.kind}' scaling is not supported.")
        self._settings = settings
        self._names = (context.name("rope_cos"), context.name("rope_sin"))
        frequencies, _ = FREQUENCIES["default"](settings)
        self._frequencies = frequencies[: settings.kept].to(context.device)
        heads = (settings.num_kv_heads,) if settings.each_head else ()
        # Always float32: they multiply float32 angles.
        context = replace(context, dtype=torch.float32)
        self.cos = context.empty(*heads, settings.kept, settings.kept)
        self.sin = context.empty(*heads, settings.kept, settings.kept)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """[num_kv_heads, kept, kept], or [kept, kept] for all heads; their names have no suffix."""
        yield from zip(self._names, (self.cos, self.sin), strict=True)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """Angles of int64 positions [T] for query and then key heads, rounded to `dtype`."""
        phase = torch.outer(positions.to(torch.float32), self._frequencies)
        cos, sin = _mixed(phase.cos(), self.cos), _mixed(phase.sin(), self.sin)
        still = self._settings.dim // 2 - self._settings.kept
        cos, sin = F.pad(cos, (0, still), value=1.0), F.pad(sin, (0, still))
        return Angles(
            self._of_heads(self._paired(cos, cos)).to(dtype),
            self._of_heads(self._paired(-sin, sin)).to(dtype),
            self._settings.interleaved,
        )

    def _paired(self, first: Tensor, second: Tensor) -> Tensor:
        """[T, heads, dim / 2] for either channel of each pair to [T, heads, dim]."""
        if self._settings.interleaved:
            return torch.stack((first, second), -1).flatten(-2)
        return torch.cat((first, second), -1)

    def _of_heads(self, angles: Tensor) -> Tensor:
        """[T, num_kv_heads or 1, dim] to [T, num_heads + num_kv_heads or 1, dim]."""
        settings = self._settings
        if not settings.each_head:
            return angles
        group = settings.num_heads // settings.num_kv_heads
        return torch.cat((angles.repeat_interleave(group, 1), angles), 1)


def _mixed(turns: Tensor, matrices: Tensor) -> Tensor:
    """[T, kept] and [(heads,) kept, kept] to [T, heads or 1, kept].

    In float64, so that a token's angles do not depend on its batch.
    """
    every = matrices.view(-1, *matrices.shape[-2:]).double()
    return torch.einsum("tk,hkn->thn", turns.double(), every).float()
