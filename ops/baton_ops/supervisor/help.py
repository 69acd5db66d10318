"""The help of `baton serve`: each flag once, by group."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from baton.settings import Group, Settings, config_classes, trait
from baton_ops.supervisor.flags import table

_HEAD = """usage: baton serve [MODEL] [flags]

A setting of one service is also a flag with its name (--worker.max-num-seqs), BATON_* variable and
key of the file of --config. --help-all shows advanced settings too."""


def page(own: Mapping[str, Any], everything: bool) -> str:
    """The text; advanced settings only when everything is asked for."""
    lines, found = [_HEAD], list(_entries(own))
    for group in get_args(Group):
        lines += ["", f"{group}:"]
        for flag, field in sorted(found, key=lambda entry: entry[0]):
            if trait(field, "group") == group and (everything or not trait(field, "advanced")):
                lines += _lines(flag, field)
    return "\n".join(lines)


def _lines(flag: str, field: Any) -> list[str]:
    mark = " (advanced)" if trait(field, "advanced") else ""
    no = f" / --no-{flag}" if field.annotation is bool else ""
    text = textwrap.fill(f"{field.description or ''}", 96, initial_indent=" " * 6)
    return [f"  --{flag}{no}{mark}", textwrap.indent(text, "      ", lambda line: line[0] != " ")]


def _entries(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Plain flags, and flags with a service where the plain name means several things."""
    flags, seen = table(own), set(own)
    yield from ((name.replace("_", "-"), field) for name, field in own.items())
    for service, cls in config_classes().items():
        for name in set(cls.model_fields) - set(Settings.model_fields):
            kebab = name.replace("_", "-")
            if kebab not in flags:
                yield f"{service}.{kebab}", cls.model_fields[name]
            elif name not in seen:
                seen.add(name)
                yield kebab, cls.model_fields[name]
