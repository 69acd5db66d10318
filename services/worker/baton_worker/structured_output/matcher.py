"""Contracts of grammar engines: what compiles a grammar, and where one output stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from baton.protocol import Grammar

Bits = npt.NDArray[np.uint8]


class Matcher(Protocol):
    """Where one output stands in its grammar."""

    @property
    def error(self) -> str:
        """Why nothing can follow; empty while all is well."""

    @property
    def may_end(self) -> bool:
        """The output so far is complete."""

    @property
    def over(self) -> bool:
        """The output is complete, and nothing can follow."""

    def copy(self) -> Matcher:
        """One that goes on from here on its own."""

    def accept(self, tokens: Sequence[int]) -> bool:
        """Go on after these. False when the grammar does not allow them."""

    def back(self) -> None:
        """Take back the last token."""

    def forced(self) -> bytes:
        """The bytes that must come next, as far as they are known; empty where it may end."""

    def allowed(self) -> Bits:
        """One bit per token or more, the least significant first."""


class GrammarEngine(Protocol):
    """What a name in `GRAMMARS` stands for; built with the vocabulary."""

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of the output. Raises `GrammarError`."""
