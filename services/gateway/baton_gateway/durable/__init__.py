"""Where durable streams outlive the process that writes them: `base` says how, one module each."""

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
    """A journal's name, or empty. Raises `SettingsError` for any other."""
    return JOURNALS.check(name) if name else name
