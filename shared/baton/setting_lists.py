"""Settings with lists."""

from __future__ import annotations

import msgspec

from baton.errors import SettingsError


def listed(setting: str) -> tuple[str, ...]:
    """Names separated by commas or, as in vLLM, a JSON list. Raises `SettingsError`."""
    if setting.lstrip().startswith("["):
        try:
            return msgspec.json.decode(setting, type=tuple[str, ...])
        except msgspec.DecodeError as error:
            raise SettingsError(f"Cannot read the list {setting}: {error}.") from error
    return tuple(one.strip() for one in setting.split(",") if one.strip())
