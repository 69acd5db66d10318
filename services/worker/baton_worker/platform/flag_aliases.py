"""Names that other servers have for what is here, or is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from baton.errors import SettingsError
from baton.registry import Registry


@dataclass(frozen=True, slots=True)
class FlagAliases:
    """Of the values of one flag, all in small letters."""

    flag: str
    """As it is written: "--attention-backend"."""
    aliases: Mapping[str, str]
    """Names in other systems to the names here."""
    elsewhere: Mapping[str, str]
    """Names that are not supported, or patterns of them ("rocm*"), to what to use instead, in half
    a sentence."""

    def ours(self, name: str) -> str:
        """The name that something has here; it need not exist.

        Raises:
            SettingsError: it is one that others have, and that nothing here is called by.
        """
        name = name.lower()
        for pattern, instead in self.elsewhere.items():
            if fnmatchcase(name, pattern):
                raise SettingsError(f"{self.flag} {name}: {instead}.")
        return self.aliases.get(name, name)

    def candidates(self, name: str, registry: Registry) -> tuple[str, ...]:
        """The rows that a value of the flag leaves: every one for "auto", else the one it means.

        Raises:
            SettingsError: it means none of them.
        """
        name_here = self.ours(name)
        return registry.names() if name_here == "auto" else (registry.check(name_here),)
