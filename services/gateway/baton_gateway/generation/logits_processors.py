"""Logits processors that clients may name, and what they may say to them.

A processor is code, so a client can only choose among the names that the operator has enabled. It
has two halves: the check of its argument here, before any worker is asked, and the computation in
the worker's registry of the same name. A package adds both, through the entry-point groups
`baton.processor_arguments` and `baton.processors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from baton_gateway.generation.processor_registry import ARGUMENTS
from baton_gateway.http.errors import invalid, shorten

MAX_PROCESSORS = 8
_MAX_ARGUMENT = 4096
"""Bytes of one argument as JSON."""


def check(chosen: Mapping[str, Any], enabled: tuple[str, ...]) -> dict[str, str]:
    """Each chosen processor with its argument as JSON. Raises `InvalidRequest`."""
    return {name: _argument(name, value, enabled) for name, value in chosen.items()}


def _argument(name: str, value: Any, enabled: tuple[str, ...]) -> str:
    param = f"processors.{name[:64]}"
    if name not in enabled:
        known = ", ".join(f"'{n}'" for n in enabled) or "none"
        raise invalid(
            param,
            f"Unsupported value: '{name[:64]}' is not a processor of this server. Enabled: "
            f"{known}.",
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
    """The argument of `no_repeat_ngram`: {"size": n}, n from 1 to 64."""
    size = value.get("size") if isinstance(value, dict) and len(value) == 1 else None
    if type(size) is int and 1 <= size <= 64:
        return ""
    return f'expected {{"size": n}} with n from 1 to 64, but got {shorten(value)}.'
