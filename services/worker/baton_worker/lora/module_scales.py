"""Ranks and scales of the modules of an adapter, by the patterns of its adapter_config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from baton.errors import ModelError
from baton.process.child_pool import Child, ChildDied, ChildTimeout
from baton_worker.lora.pattern_sandbox import first_matches
from baton_worker.lora.peft_config import PeftConfig

SECONDS = 5.0
"""Processor time in which all patterns must have matched all modules."""
_STARTUP_SECONDS = 40.0
_PLAIN = re.compile(r"[\w.-]+")
"""A pattern that is a name, or the end of one: matched in linear time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModuleScales:
    """By module, of the modules that it was made for."""

    ranks: Mapping[str, int]
    """Ranks of the products."""
    scales: Mapping[str, float]
    """Factors of the products."""


def module_scales(config: PeftConfig, modules: Iterable[str]) -> ModuleScales:
    """Ranks and scales of modules.

    Raises:
        ModelError: a pattern is no regular expression, or takes too long.
    """
    names = sorted(set(modules))
    ranks = _by_module(config.rank_pattern, names, config.rank)
    alphas = _by_module(config.alpha_pattern, names, config.alpha)
    root = math.sqrt if config.rslora else float
    return ModuleScales(ranks, {name: alphas[name] / root(ranks[name]) for name in names})


def _by_module(patterns: Mapping[str, T], names: Sequence[str], default: T) -> dict[str, T]:
    values = list(patterns.values())
    matches = _matches(list(patterns), names)
    return {
        name: default if match is None else values[match]
        for name, match in zip(names, matches, strict=True)
    }


def _matches(patterns: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """What `first_matches` returns; in a child process unless the patterns are plain names."""
    if all(_PLAIN.fullmatch(pattern) for pattern in patterns):
        return first_matches(patterns, names)
    child = Child("baton_worker.lora.pattern_sandbox")
    try:
        child.exchange(b"", _STARTUP_SECONDS, wall=True)
        answer = child.exchange(msgspec.msgpack.encode((patterns, names)), SECONDS)
    except ChildTimeout as error:
        raise ModelError(
            f"The patterns of the adapter take longer than {SECONDS:g} s to match (rank_pattern, "
            "alpha_pattern): write the names of its modules."
        ) from error
    except ChildDied as error:
        raise ModelError(
            "The patterns of the adapter need too much memory (rank_pattern, alpha_pattern): write "
            "the names of its modules."
        ) from error
    finally:
        child.close()
    matches = msgspec.msgpack.decode(answer, type=list[int | None] | str)
    if isinstance(matches, str):
        raise ModelError(f"A pattern of the adapter is no regular expression: {matches}.")
    return matches
