"""The delta rule over small blocks of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.layers.invariant import exp

_LEAST = 1e-6
"""Added to squared norms to avoid division by zero."""


class Tokens(NamedTuple):
    """The state updates of B tokens in n texts; float32. B is a power of two."""

    key: Tensor
    """[n, heads, B, key_dim], of unit length"""
    value: Tensor
    """[n, heads, B, value_dim]"""
    strength: Tensor
    """[n, heads, B, 1]: beta, the weight of the correction."""
    decay: Tensor
    """[n, heads, B, 1], or [n, heads, B, key_dim] per key channel: each token's log decay of the
    state."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A solved block of tokens with its initial state and queries."""

    key: Tensor
    query: Tensor
    state: Tensor
    total: Tensor
    """Cumulative log decay of `state` after each token, shaped like `Tokens.decay`."""
    scores: Tensor
    """[n, heads, B, B]: decayed causal scores of queries and keys."""
    added: Tensor
    """[n, heads, B, value_dim]: u of each token, see `solve`."""

    def out(self) -> Tensor:
        """The output of each query after its token: [n, heads, B, value_dim]."""
        return self.scores @ self.added + (self.query * _exp(self.total)) @ self.state

    def after(self) -> Tensor:
        """The state after the last token."""
        end = self.total[:, :, -1:]
        decayed = (self.key * _exp(end - self.total)).transpose(2, 3) @ self.added
        return decayed.addcmul_(self.state, _exp(end).transpose(2, 3))


def solve(tokens: Tokens, query: Tensor, state: Tensor) -> Solved:
    """Apply tokens and queries [n, heads, B, key_dim] to a state [n, heads, key_dim, value_dim].

    With decay a, strength b and update u of a token,

        u[t] = b[t] (v[t] - k[t] (a[t] state[t - 1]))
        state[t] = a[t] state[t - 1] + k[t]^T u[t]
        out[t] = q[t] state[t]

    All u of a block come from one triangular system (Yang et al. 2024, arXiv:2406.06484, with
    decays arXiv:2412.06464): an update depends on those before it through A[t, j] = b[t] (k[t] .
    k[j]) a[j + 1] ... a[t], so

        (1 + A) u = b (v - (k a[1] ... a[t]) state)

    Each row depends on itself and the rows above it only.
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
    """[..., dim] normalised to unit length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _LEAST)


def _by_head(key: Tensor, query: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Decayed causal scores of keys with keys, and of queries with keys: [n, heads, B, B] both."""
    size = key.shape[2]
    later = torch.ones(size, size, dtype=torch.bool, device=key.device).triu(1)
    decay = _exp((total - total.transpose(2, 3)).masked_fill(later, -torch.inf))
    turned = key.transpose(2, 3)
    return (key @ turned) * decay, (query @ turned) * decay


def _by_channel(key: Tensor, query: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The same with a decay per channel, which is inside the product.

    Each pair of tokens falls into the two halves of a part of 2, 4, ... or B tokens. The decay from
    the earlier token to the end of its half, and from there to the later token, are two factors of
    at most 1, so no quotient is needed, which could be 0 / 0 in float32.
    """
    both, size = torch.stack((key, query)), key.shape[2]
    result = torch.diag_embed((both * key).sum(-1))
    half = 1
    while half < size:
        earlier, _ = _halves(key, half)
        (before, behind), (_, later) = _halves(total, half), _halves(both, half)
        middle = before[..., -1:, :]
        scores = (later * _exp(behind - middle)) @ (earlier * _exp(middle - before)).mT
        _corners(result, half).copy_(scores.movedim(-3, -1))
        half *= 2
    return result[0], result[1]


def _halves(x: Tensor, half: int) -> tuple[Tensor, ...]:
    """[..., B, dim] to the first and second halves of its parts, [..., parts, half, dim]."""
    return torch.unflatten(x, -2, (-1, 2, half)).unbind(-3)


def _corners(scores: Tensor, half: int) -> Tensor:
    """Entries of [..., B, B] between second and first halves of the same part, [..., half, half,
    parts]."""
    columns = torch.unflatten(scores, -1, (-1, 2, half))[..., 0, :]
    rows = torch.unflatten(columns, -3, (-1, 2, half))[..., 1, :, :, :]
    return torch.diagonal(rows, dim1=-4, dim2=-2)


def _exp(x: Tensor) -> Tensor:
    """exp, fast also for tensors with a short last axis."""
    return exp(x.flatten()).view(x.shape)
