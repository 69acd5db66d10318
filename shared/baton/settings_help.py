"""The help of a command: each setting once, by group, with its values and its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import CliPositionalArg

from baton.registry import Registry
from baton.setting_groups import Group, trait

HELP = ("-h", "--help")
HELP_ALL = ("--help-all", "--help=advanced", "--help=all")
WIDTH = 96
_POSITIONAL = get_args(CliPositionalArg[str])[1]
_NAMES = {"str": "TEXT", "int": "N", "float": "NUMBER", "Path": "PATH", "bool": ""}


def page(usage: str, fields: Iterable[tuple[str, FieldInfo]], everything: bool) -> str:
    """Flags without their dashes, with their fields, under the headings of their groups: those
    without a group first, and advanced settings only with --help-all."""
    lines, entries = [usage], sorted(fields, key=lambda entry: entry[0])
    for group in ("", *get_args(Group)):
        shown = [
            line
            for flag, field in entries
            if (trait(field, "group") or "") == group
            and (everything or not trait(field, "advanced"))
            for line in entry(flag, field)
        ]
        lines += ["", f"{group or 'options'}:", *shown] if shown else []
    return "\n".join(lines)


def entry(flag: str, field: FieldInfo) -> Iterator[str]:
    """One flag with its values, then its meaning and its default."""
    mark = " (advanced)" if trait(field, "advanced") else ""
    if positional(field):
        yield f"  {flag.upper()}{mark}"
    elif field.annotation is bool:
        yield f"  --{flag} / --no-{flag}{mark}"
    else:
        yield f"  --{flag} {values(field)}{mark}"
    text = f"{field.description or ''} {_default(field)}".strip()
    yield textwrap.fill(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def positional(field: FieldInfo) -> bool:
    """Whether it is a positional argument."""
    return _POSITIONAL in field.metadata


def values(field: FieldInfo) -> str:
    """Values of a flag: its choices, or its type."""
    for note in field.metadata:
        if isinstance(note, Registry):
            return "{" + ",".join(note.names()) + "}"
    return _type_name(field.annotation)


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "{" + ",".join(str(choice) for choice in get_args(annotation)) + "}"
    inner = [a for a in get_args(annotation) if a not in (type(None), Ellipsis)]
    if inner:
        return _type_name(inner[0])
    name: str = annotation.__name__
    return _NAMES.get(name, name.upper())


def _default(field: FieldInfo) -> str:
    default = field.default
    if field.default_factory is not None or default in (None, "", (), PydanticUndefined):
        return ""
    if isinstance(default, bool):
        return f"(default: {'on' if default else 'off'})"
    if isinstance(default, tuple):
        default = ",".join(str(part) for part in default)
    return f"(default: {default})"
