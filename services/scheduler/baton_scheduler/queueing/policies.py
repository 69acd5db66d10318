"""Registry of queueing policies. Imports little, since every Config reads it."""

from __future__ import annotations

from baton.registry import Registry

ORDERS = Registry(
    "order",
    {
        "fcfs": "baton_scheduler.queueing.queue:Queue",
        "priority": "baton_scheduler.queueing.queue:Priority",
        "fair": "baton_scheduler.queueing.fair:Fair",
    },
)
"""Implementations of `Queue`, each created with the tenants' weights and account numbers."""


def parse_weights(text: str) -> dict[str, float]:
    """Parse text such as `"a=1,b=2.5"`. Raises `ValueError`."""
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        tenant, separator, value = part.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = 0.0
        if not separator or not 1e-6 <= weight <= 1e6:
            raise ValueError(f"'{part}' is not TENANT=WEIGHT with a weight from 1e-6 to 1e6.")
        weights[tenant.strip()] = weight
    return weights
