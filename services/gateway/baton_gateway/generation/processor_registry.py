"""Names of the enabled logits processors. Imports little, since every process loads the Config."""

from __future__ import annotations

from baton.errors import as_value_error
from baton.registry import Registry

ARGUMENTS = Registry(
    "processor_arguments",
    {"no_repeat_ngram": "baton_gateway.generation.logits_processors:ngram_size"},
)
"""Argument check per processor name; returns an error text, or an empty string."""


def names(setting: str) -> tuple[str, ...]:
    """Parse a comma-separated setting. Raises `SettingsError` for unknown names."""
    return tuple(ARGUMENTS.check(name.strip()) for name in setting.split(",") if name.strip())


def check_setting(setting: str) -> str:
    """Validate a comma-separated setting. Raises `ValueError` for unknown names."""
    with as_value_error():
        names(setting)
    return setting
