"""Contracts of grammar engines and of matchers, the state of one output in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from baton.protocol import Grammar

Bits = npt.NDArray[np.uint8]


class Matcher(Protocol):
    """State of one output in its grammar."""

    @property
    def error(self) -> str:
        """Why no token can follow; empty if one can."""

    @property
    def may_end(self) -> bool:
        """True if the output so far is complete."""

    @property
    def over(self) -> bool:
        """True if the output is complete and no token can follow."""

    def copy(self) -> Matcher:
        """An independent copy."""

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance by these tokens. False if the grammar does not allow them."""

    def back(self) -> None:
        """Take back the last token."""

    def forced(self) -> bytes:
        """The known part of the bytes that must follow; empty if the output may end."""

    def allowed(self) -> Bits:
        """One bit per token or more, the least significant first."""


class GrammarEngine(Protocol):
    """Contract of the entries of `GRAMMARS`; built with the vocabulary."""

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of the output. Raises `GrammarError`."""
