"""The residual stream between halves of blocks, where a norm makes the sum that it norms."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from baton_worker.layers.norm import LayerNorm, RmsNorm


class ResidualSum(NamedTuple):
    """A residual stream whose last addition is deferred to the norm that reads it, which adds in
    its own launch."""

    stream: Tensor
    """[T, hidden]"""
    more: Tensor
    """[T, hidden]: the output of the last half."""


Residual: TypeAlias = Tensor | ResidualSum
"""A stream [T, hidden], or one that is not added up."""


def added(x: Residual) -> Tensor:
    """The stream [T, hidden]."""
    return x.stream + x.more if isinstance(x, ResidualSum) else x


def adds(norm: nn.Module) -> bool:
    """Whether a norm makes the sum that it norms."""
    return isinstance(norm, RmsNorm | LayerNorm) and norm.adds


def normed(x: Residual, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The norm of a stream, and the stream: [T, hidden] each."""
    if isinstance(x, ResidualSum) and isinstance(norm, RmsNorm | LayerNorm) and norm.adds:
        return norm.of_sum(*x)
    total = added(x)
    return norm(total), total
