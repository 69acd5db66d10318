"""Import every module that must do without torch, with torch made impossible to import.

Run as a script by `make check`; `tests/test_layout.py` runs it too.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = (
    *("baton", "baton_gateway", "baton_tokenizer", "baton_scheduler", "baton_mm_preprocess"),
    "baton_ops",
)
BANNED = ("torch", "transformers")
OPTIONAL = ("baton.structured_output.xgrammar",)
"""Imported by choice, by what runs beside torch or in a child process of its own."""


class Ban(MetaPathFinder):
    """Refuses to find the banned packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in BANNED:
            raise ImportError(f"{fullname} is banned here")
        return None


def modules() -> Iterator[str]:
    """Every module of the packages; `__main__` would run the service."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield name
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith("__main__") and found.name not in OPTIONAL:
                yield found.name


def main() -> None:
    """Import them all."""
    sys.meta_path.insert(0, Ban())
    names = list(modules())
    for name in names:
        importlib.import_module(name)
    print(f"{len(names)} modules import without {' and '.join(BANNED)}")


if __name__ == "__main__":
    main()
