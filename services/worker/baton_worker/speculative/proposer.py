"""Contract of proposers of draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


class DraftRequest(NamedTuple):
    """A sequence that may get drafts in this step."""

    slot: int
    tokens: Tokens
    """int32 [any], a view: its prompt and its log."""
    most: int
    """Most drafts that there is room for, at least 1."""
    group: bytes = b""
    """Sequences that share cached prefixes. Drafts for one group never come from texts of another,
    which speed would reveal."""


class Proposer(Protocol):
    """Proposes the next tokens. A wrong draft costs time and never a token, so drafts need not be
    exact; but a proposer must not fail, and must not keep state that a request depends on."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Tokens]:
        """Up to `most` tokens for each sequence, int32, in the order of the requests."""

    def release(self, slot: int) -> None:
        """The sequence of a slot has gone."""
