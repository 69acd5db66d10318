"""What proposes draft tokens: the contract of all methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


class DraftRequest(NamedTuple):
    """A sequence that may be given drafts in this step."""

    slot: int
    tokens: Tokens
    """int32 [any], a view: its prompt and its log."""
    most: int
    """Most drafts that there is room for, at least 1."""
    group: bytes = b""
    """Sequences that share cached prefixes. What is told to one group is no help for another: how
    fast a text comes would tell it."""


class Proposer(Protocol):
    """Guesses what comes next. A bad guess costs time and never a token, so nothing here needs to
    be exact; but a proposer may not fail, and may keep nothing that a request would miss."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Tokens]:
        """Up to `most` tokens for each sequence, int32, in the order of the requests."""

    def release(self, slot: int) -> None:
        """The sequence of a slot has gone."""
