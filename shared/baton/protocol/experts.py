"""Balance of an expert group."""

from __future__ import annotations

import msgspec


class ExpertBalance(msgspec.Struct, frozen=True, array_like=True):
    """Distribution of the tokens of an expert group over its ranks, for the loads of its last steps
    and the current placement; sums over all layers."""

    balancedness: float = 1.0
    """Mean tokens per rank / tokens of the busiest rank."""
    mean_tokens: float = 0.0
    """Mean tokens per rank."""
    max_tokens: float = 0.0
    """Tokens of the busiest rank of each layer."""
    rearrangements: int = 0
    """Number of rearrangements since the group started."""
