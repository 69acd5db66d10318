"""Conformer blocks (Gulati et al. 2020, arXiv:2005.08100)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, a convolution, half a feed-forward, and a norm. Each part
    norms its own input; its output joins the stream.

    Args:
        half: factor on the output of both feed-forwards.
    """

    def __init__(
        self,
        first: nn.Module,
        attention: nn.Module,
        convolution: nn.Module,
        last: nn.Module,
        norm: nn.Module,
        half: float = 0.5,
    ) -> None:
        super().__init__()
        self.first, self.attention, self.convolution = first, attention, convolution
        self.last, self.norm, self._half = last, norm, half

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """[frames, hidden] to the same; `context` goes to the attention."""
        x = x + self._half * self.first(x)
        x = x + self.attention(x, *context)
        x = x + self.convolution(x)
        x = x + self._half * self.last(x)
        out: Tensor = self.norm(x)
        return out
