"""The delta rule, a few tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.layers.invariant import exp

_LEAST = 1e-6
"""What is added to the square of a length, so that nothing is divided by zero."""


class Tokens(NamedTuple):
    """What B tokens of n texts do to their states; float32. B is a power of two."""

    key: Tensor
    """[n, heads, B, key_dim], of length 1"""
    value: Tensor
    """[n, heads, B, value_dim]"""
    strength: Tensor
    """[n, heads, B, 1]: how much a correction counts."""
    decay: Tensor
    """[n, heads, B, 1] or, of each channel of a key, [n, heads, B, key_dim]: the logarithm of what
    a token leaves of the state before it."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A block of tokens between two states, and what was asked."""

    key: Tensor
    query: Tensor
    state: Tensor
    total: Tensor
    """Logarithm of what is left of `state` behind each token, like `Tokens.decay`."""
    scores: Tensor
    """[n, heads, B, B]: of each query with each key that is not later, and what is left of it."""
    added: Tensor
    """[n, heads, B, value_dim]: u of each token, see `solve`."""

    def out(self) -> Tensor:
        """What each query reads behind the token at its place: [n, heads, B, value_dim]."""
        return self.scores @ self.added + (self.query * _exp(self.total)) @ self.state

    def after(self) -> Tensor:
        """The state behind the last token."""
        end = self.total[:, :, -1:]
        left = (self.key * _exp(end - self.total)).transpose(2, 3) @ self.added
        return left.addcmul_(self.state, _exp(end).transpose(2, 3))


def solve(tokens: Tokens, query: Tensor, state: Tensor) -> Solved:
    """Put tokens and queries [n, heads, B, key_dim] behind a state [n, heads, key_dim, value_dim].

    With the decay a, the strength b, and u for what a token adds,

        u[t] = b[t] (v[t] - k[t] (a[t] state[t - 1]))
        state[t] = a[t] state[t - 1] + k[t]^T u[t]
        out[t] = q[t] state[t]

    Here all u of a block come out of one triangular system (Yang et al. 2024, arXiv:2406.06484,
    and with decays arXiv:2412.06464): what a token adds depends on those before it by
    A[t, j] = b[t] (k[t] . k[j]) a[j + 1] ... a[t], so

        (1 + A) u = b (v - (k a[1] ... a[t]) state)

    Every row comes from itself and those above it.
    """
    total = tokens.decay.cumsum(2)
    products = _by_head if total.shape[-1] == 1 else _by_channel
    keys, queries = products(tokens.key, query, total)
    news = tokens.value - (tokens.key * _exp(total)) @ state
    added = torch.linalg.solve_triangular(
        tokens.strength * keys, tokens.strength * news, upper=False, unitriangular=True
    )
    return Solved(tokens.key, query, state, total, queries, added)


def unit(x: Tensor) -> Tensor:
    """[..., dim] divided by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _LEAST)


def _by_head(key: Tensor, query: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Of each key, and of each query, with each key that is not later, times what is left of the
    latter: [n, heads, B, B] both."""
    size = key.shape[2]
    later = torch.ones(size, size, dtype=torch.bool, device=key.device).triu(1)
    left = _exp((total - total.transpose(2, 3)).masked_fill(later, -torch.inf))
    turned = key.transpose(2, 3)
    return (key @ turned) * left, (query @ turned) * left


def _by_channel(key: Tensor, query: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The same where each channel has a decay of its own, which is in the middle of a product.

    A pair of tokens is in the two halves of a part of 2, 4, ... or B tokens. What is left from the
    earlier one to the end of its half, and from there to the later one, are two factors of at most
    1: no quotient is taken, which may be 0 / 0 in float32.
    """
    both, size = torch.stack((key, query)), key.shape[2]
    found = torch.diag_embed((both * key).sum(-1))
    half = 1
    while half < size:
        earlier, _ = _halves(key, half)
        (before, behind), (_, later) = _halves(total, half), _halves(both, half)
        middle = before[..., -1:, :]
        scores = (later * _exp(behind - middle)) @ (earlier * _exp(middle - before)).mT
        _corners(found, half).copy_(scores.movedim(-3, -1))
        half *= 2
    return found[0], found[1]


def _halves(x: Tensor, half: int) -> tuple[Tensor, ...]:
    """[..., B, dim] to the first and the second halves of its parts, [..., parts, half, dim]."""
    return torch.unflatten(x, -2, (-1, 2, half)).unbind(-3)


def _corners(scores: Tensor, half: int) -> Tensor:
    """Of [..., B, B] the places where second halves of parts meet the first halves of the same
    ones, [..., half, half, parts]."""
    columns = torch.unflatten(scores, -1, (-1, 2, half))[..., 0, :]
    rows = torch.unflatten(columns, -3, (-1, 2, half))[..., 1, :, :, :]
    return torch.diagonal(rows, dim1=-4, dim2=-2)


def _exp(x: Tensor) -> Tensor:
    """Of a tensor whose last axis may be short."""
    return exp(x.flatten()).view(x.shape)
