"""Which logits processors the operator enables. Light: every process reads every Config."""

from __future__ import annotations

from baton.errors import SettingsError
from baton.registry import Registry

ARGUMENTS = Registry(
    "processor_arguments",
    {"no_repeat_ngram": "baton_gateway.generation.logits_processors:ngram_size"},
)
"""Name to a function that returns what is wrong with an argument, or an empty string."""


def names(setting: str) -> tuple[str, ...]:
    """The enabled names of a comma-separated setting. Raises `SettingsError` for unknown ones."""
    return tuple(ARGUMENTS.check(name.strip()) for name in setting.split(",") if name.strip())


def check_setting(setting: str) -> str:
    """A comma-separated setting, if every name in it is known."""
    try:
        names(setting)
    except SettingsError as error:
        raise ValueError(error.message) from error
    return setting
