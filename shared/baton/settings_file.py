"""The YAML file of `--config`: keys are the names of flags, with a section for each service."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from baton.errors import SettingsError


def path_in(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The file named by the flags or the environment; empty if there is none."""
    path = environ.get("BATON_CONFIG", "")
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word == "--config":
            path = following
        elif word.startswith("--config="):
            path = word.partition("=")[2]
    return path


def read(path: str) -> dict[str, Any]:
    """The mapping in the file, with underscores in its keys. Raises `SettingsError`."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        # Neither a value that holds itself nor half of a surrogate pair can be a flag's argument.
        json.dumps(data, default=str, skipkeys=True, ensure_ascii=False).encode()
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise SettingsError(f"--config {path}, line {line}: {error.problem}.") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"--config {path} cannot be read: {reason}.") from error
    return mapping(data or {}, path)


def mapping(data: Any, where: str) -> dict[str, Any]:
    """A mapping, with underscores in its keys. Raises `SettingsError` for anything else."""
    if not isinstance(data, dict):
        raise SettingsError(f"--config: {where} must be a mapping of settings.")
    return {str(key).replace("-", "_"): value for key, value in data.items()}


def text(value: Any) -> str:
    """A value in the form of a flag's argument."""
    if isinstance(value, list):
        return ",".join(text(part) for part in value)
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return "" if value is None else str(value)


def unknown(key: str, known: Iterable[str]) -> SettingsError:
    """Error of an unknown key, with the nearest known one."""
    near = difflib.get_close_matches(key, list(known), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return SettingsError(f"--config: unknown setting {key}.{hint}")


def of_service(
    data: Mapping[str, Any], service: str, fields: Mapping[str, set[str]]
) -> dict[str, str]:
    """Values of the file for one service: its section takes precedence over common keys.

    Settings of other services are checked by name and ignored.
    """
    sections = {name.replace("-", "_"): name for name in fields if name}
    allowed = set().union(*fields.values(), sections)
    values: dict[str, str] = {}
    specific: dict[str, str] = {}
    for key, value in data.items():
        if key in fields[service]:
            values[key] = text(value)
        elif key in sections:
            part = _section(value, key, fields[sections[key]])
            specific |= part if sections[key] == service else {}
        elif key not in allowed:
            raise unknown(key, allowed)
    return values | specific


def _section(value: Any, key: str, fields: set[str]) -> dict[str, str]:
    part = mapping(value, key)
    for name in part:
        if name not in fields:
            raise unknown(f"{key}.{name}", [f"{key}.{field}" for field in fields])
    return {name: text(entry) for name, entry in part.items()}
