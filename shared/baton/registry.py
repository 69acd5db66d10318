"""Registry: a table of names to lazily imported implementations, used for everything pluggable."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from baton.errors import SettingsError, as_value_error


class Registry:
    """A closed list of names, each a `"module:attribute"` that is imported on first use.

    Packages outside this repository add names through the entry-point group `baton.<kind>`.
    As metadata of a settings field (`Annotated[str, ORDERS]`) it validates the value and
    lists the choices.
    """

    def __init__(self, kind: str, table: Mapping[str, str]) -> None:
        self.kind = kind
        self._table = dict(table)

    @cached_property
    def _targets(self) -> dict[str, str]:
        plugins = {e.name: e.value for e in entry_points(group=f"baton.{self.kind}")}
        return self._table | plugins

    def names(self) -> tuple[str, ...]:
        """Every known name, in order of preference."""
        return tuple(self._targets)

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def check(self, name: str) -> str:
        """Return `name`, or raise `SettingsError` that lists the valid ones and the nearest."""
        if name in self._targets:
            return name
        near = difflib.get_close_matches(name, self._targets, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise SettingsError(
            f"Unknown {self.kind} '{name}'. Known: {', '.join(self.names())}.{hint}"
        )

    def load(self, name: str) -> Any:
        """Import and return the target of `name`."""
        module, _, attribute = self._targets[self.check(name)].partition(":")
        return getattr(import_module(module), attribute)

    def help(self) -> str:
        """The choices, as a settings page prints them."""
        return " | ".join(self.names())

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def validate(value: str) -> str:
            with as_value_error():
                return self.check(value)

        return core_schema.no_info_after_validator_function(validate, handler(source))
