"""Registry of placement policies and weights of scores. Imports little, since every Config reads
it."""

from __future__ import annotations

from baton.registry import Registry

PLACEMENTS = Registry(
    "placement",
    {
        "cost": "baton_scheduler.placement.placement:CostBased",
        "round-robin": "baton_scheduler.placement.placement:RoundRobin",
        "least-loaded": "baton_scheduler.placement.placement:LeastLoaded",
        "modulo": "baton_scheduler.placement.placement:Modulo",
    },
)
"""Implementations of `Placement`, each created with the weights of scores."""

SCORES = {
    "wait": 1.0,
    "prefill": 1.0,
    "interference": 0.1,
    "decode": 1.0,
    "eviction": 0.5,
    "transfer": 1.0,
}
"""Score -> weight. All scores are estimated seconds; see `baton_scheduler.placement.placement`."""


def parse_scores(text: str) -> dict[str, float]:
    """All weights, with those in text such as `"interference=0.5,eviction=0"` replaced. Raises
    `ValueError`."""
    weights = dict(SCORES)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if name.strip() not in SCORES or not 0 <= weight <= 1e6:
            known = ", ".join(SCORES)
            raise ValueError(f"'{part}' is not SCORE=WEIGHT, of {known} and from 0 to 1e6.")
        weights[name.strip()] = weight
    return weights
