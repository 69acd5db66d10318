"""Validates logits processors and their arguments.

Clients choose among the processors that the operator has enabled. A processor has two halves: its
argument check runs here, its computation in the worker, under the same name. A package registers
them through the entry-point groups `baton.processor_arguments` and `baton.processors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from baton_gateway.generation.processor_registry import ARGUMENTS
from baton_gateway.http.errors import invalid, shorten

MAX_PROCESSORS = 8
_MAX_ARGUMENT = 4096
"""Longest argument, in bytes of JSON."""


def check(chosen: Mapping[str, Any], enabled: tuple[str, ...]) -> dict[str, str]:
    """Return the JSON argument of each chosen processor. Raises `InvalidRequest`."""
    return {name: _argument(name, value, enabled) for name, value in chosen.items()}


def _argument(name: str, value: Any, enabled: tuple[str, ...]) -> str:
    param = f"processors.{name[:64]}"
    if name not in enabled:
        names = ", ".join(f"'{n}'" for n in enabled) or "none"
        raise invalid(
            param,
            f"Unsupported value: '{name[:64]}' is not a processor of this server. Enabled: "
            f"{names}.",
            "unsupported_value",
        )
    text = msgspec.json.encode(value)
    if len(text) > _MAX_ARGUMENT:
        raise invalid(
            param,
            f"Invalid '{param}': longer than {_MAX_ARGUMENT} bytes.",
            "string_above_max_length",
        )
    problem: Callable[[Any], str] = ARGUMENTS.load(name)
    if wrong := problem(value):
        raise invalid(param, f"Invalid '{param}': {wrong}")
    return text.decode()


def ngram_size(value: Any) -> str:
    """Validate the argument of `no_repeat_ngram`: {"size": n}, n from 1 to 64."""
    size = value.get("size") if isinstance(value, dict) and len(value) == 1 else None
    if type(size) is int and 1 <= size <= 64:
        return ""
    return f'expected {{"size": n}} with n from 1 to 64, but got {shorten(value)}.'
