"""The orders in which waiting sequences may run. Light: every process reads every Config."""

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
"""Kinds of `Queue`, each made with the weights of tenants."""


def parse_weights(text: str) -> dict[str, float]:
    """`"a=1,b=2.5"` as a mapping. Raises `ValueError` with a sentence."""
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
