"""Journals of durable streams; see `journal` for the interface. One module per backend."""

from __future__ import annotations

from baton.registry import Registry

JOURNALS = Registry(
    "journals",
    {
        "sqlite": "baton_gateway.durable.sqlite:SqliteJournal",
        "redis": "baton_gateway.durable.redis:RedisJournal",
    },
)


def check_setting(name: str) -> str:
    """Validate a journal's name, or an empty string. Raises `SettingsError` for unknown names."""
    return JOURNALS.check(name) if name else name
