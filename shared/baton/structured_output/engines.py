"""Registry of grammar engines for structured output: validation and required packages."""

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
"""Engine -> function that returns why a `Grammar` is rejected, or None."""
_NEEDS = {"xgrammar": ("xgrammar", "torch")}


def require(name: str) -> None:
    """Raise `SettingsError` if packages of an engine are not installed. Imports none of them."""
    missing = [package for package in _NEEDS.get(name, ()) if find_spec(package) is None]
    if missing:
        raise SettingsError(
            f"The grammar engine {name} needs {' and '.join(missing)}, not installed here. Install "
            f"baton-serve[{name}], or choose llguidance."
        )
