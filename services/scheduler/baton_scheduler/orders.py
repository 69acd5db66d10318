"""The orders in which waiting sequences may run. Light: every process reads every Config."""

from __future__ import annotations

from baton.registry import Registry

ORDERS = Registry(
    "order",
    {
        "fcfs": "baton_scheduler.queue:Queue",
        "priority": "baton_scheduler.queue:Priority",
        "fair": "baton_scheduler.fair:Fair",
    },
)
"""Kinds of `Queue`, each made with the weights of tenants."""
