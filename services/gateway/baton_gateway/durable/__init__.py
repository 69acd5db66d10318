"""State that outlives the process: journals of durable streams, stores of objects. One module per
backend.

See `journal` and `object_store` for the interfaces.
"""

from __future__ import annotations

from baton.registry import Registry

JOURNALS = Registry(
    "journals",
    {
        "sqlite": "baton_gateway.durable.sqlite:SqliteJournal",
        "redis": "baton_gateway.durable.redis:RedisJournal",
    },
)
STORES = Registry(
    "stores",
    {
        "sqlite": "baton_gateway.durable.sqlite_objects:SqliteObjects",
        "redis": "baton_gateway.durable.redis_objects:RedisObjects",
    },
)


def check_journal(name: str) -> str:
    """Validate a journal's name, or an empty string. Raises `SettingsError` for unknown names."""
    return JOURNALS.check(name) if name else name


def check_store(name: str) -> str:
    """Validate a store's name, or an empty string. Raises `SettingsError` for unknown names."""
    return STORES.check(name) if name else name
