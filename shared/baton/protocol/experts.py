"""How evenly the workers of an expert group work."""

from __future__ import annotations

import msgspec


class ExpertBalance(msgspec.Struct, frozen=True, array_like=True):
    """How evenly the tokens of an expert group are distributed over its ranks, by the loads of its
    last steps and the placement in use; sums over all layers."""

    balancedness: float = 1.0
    """Tokens of an average rank / tokens of the busiest one."""
    mean_tokens: float = 0.0
    """Tokens of an average rank."""
    max_tokens: float = 0.0
    """Tokens of the busiest rank of each layer."""
    rearrangements: int = 0
    """How often experts have moved since the group began."""
