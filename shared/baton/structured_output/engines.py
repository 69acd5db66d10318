"""Engines for structured output by name: what admits their grammars, and what they need."""

from __future__ import annotations

from importlib.util import find_spec

from baton.errors import SettingsError
from baton.registry import Registry

TRIALS = Registry(
    "grammar engines",
    {
        "llguidance": "baton.structured_output.llguidance:problem",
        "xgrammar": "baton.structured_output.xgrammar:problem",
    },
)
"""By engine, the function that tells why a `Grammar` cannot be admitted."""
_NEEDS = {"xgrammar": ("xgrammar", "torch")}


def require(name: str) -> None:
    """Raise `SettingsError` for an engine whose packages are not installed. Imports none."""
    missing = [package for package in _NEEDS.get(name, ()) if find_spec(package) is None]
    if missing:
        raise SettingsError(
            f"The grammar engine {name} needs {' and '.join(missing)}, not installed here. Install "
            f"baton-serve[{name}], or choose llguidance."
        )
