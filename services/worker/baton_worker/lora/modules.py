"""The setting `lora_modules`: names of adapters and their folders."""

from __future__ import annotations

import json
from typing import NamedTuple

from baton.errors import SettingsError


class LoraModule(NamedTuple):
    """One adapter that the operator names."""

    name: str
    path: str


def lora_modules(text: str) -> list[LoraModule]:
    """name=path by commas, or the JSON objects of vLLM with `name` and `path`.

    Raises:
        SettingsError: it is neither, or a name comes twice.
    """
    modules = _objects(text) if text.lstrip().startswith("{") else _pairs(text)
    names = [module.name for module in modules]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SettingsError(f"--lora-modules names '{min(twice)}' twice.")
    return modules


def _pairs(text: str) -> list[LoraModule]:
    modules = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, path = part.partition("=")
        if not equals or not name or not path:
            raise SettingsError(f"--lora-modules takes name=path (got '{part}').")
        modules.append(LoraModule(name, path))
    return modules


def _objects(text: str) -> list[LoraModule]:
    decoder, modules, rest = json.JSONDecoder(), list[LoraModule](), text.strip()
    try:
        while rest:
            data, end = decoder.raw_decode(rest)
            modules.append(LoraModule(str(data["name"]), str(data["path"])))
            rest = rest[end:].lstrip(" ,\n")
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"--lora-modules: {error!r} in {text[:100]}.") from error
    return modules
