"""The table of draft heads, and what their configs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from baton_worker.models.families.common import Config
from baton_worker.spec import Decoder, DraftHead


class Target(NamedTuple):
    """The model that a head drafts for."""

    config: Config
    """The config of its text model."""
    spec: Decoder


Family: TypeAlias = Callable[[Config, Target], DraftHead]

DRAFT_HEADS: dict[str, str] = {}
"""Architecture of a head to "module:function", filled by `draft_head` as families are imported."""
METHODS: dict[str, str] = {}
"""Architecture of a head to its method in `--speculative-config`."""
WITHIN: dict[str, str] = {}
"""Architecture of a target to that of the head which its checkpoint may hold."""


def draft_head(
    method: str, *names: str, within: tuple[str, ...] = ()
) -> Callable[[Family], Family]:
    """Declare that a function maps the config of a head, and its target, to a spec.

    Args:
        method: of `--speculative-config`.
        names: architectures.
        within: architectures of targets whose checkpoints hold the head.
    """

    def declare(family: Family) -> Family:
        for name in names:
            DRAFT_HEADS[name] = f"{family.__module__}:{family.__name__}"
            METHODS[name] = method
        WITHIN.update(dict.fromkeys(within, names[0]))
        return family

    return declare
