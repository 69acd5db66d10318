"""Columns of a result, unpacked and checked against what a correct worker can send."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.errors import WireError
from baton.protocol import Result
from baton.protocol.token_columns import unpack
from baton.protocol.vector_columns import split
from baton_scheduler.logprobs import check
from baton_scheduler.slot_table import Ints
from baton_scheduler.workers.in_flight import InFlightStep


class ResultColumns(NamedTuple):
    """Rows of a result, as on the wire except for the slots."""

    slots: Ints
    first: NDArray[np.uint32]
    counts: NDArray[np.uint8]
    tokens: NDArray[np.int32]
    """Token ids, concatenated."""
    single: bool
    """Every row has one token."""

    @property
    def owners(self) -> Ints:
        """Slot of each token."""
        return self.slots if self.single else np.repeat(self.slots, self.counts)

    @property
    def with_tokens(self) -> Ints:
        """Slots with at least one token."""
        return self.slots if self.single else self.slots[self.counts > 0]

    def take(
        self, kept: NDArray[np.bool_], most: NDArray[np.integer]
    ) -> tuple[ResultColumns, Ints | None]:
        """The `kept` rows, with at most `most` tokens each, and the previous indices of their
        tokens; None as indices if all are kept."""
        if kept.all() and (self.counts <= most).all():
            return self, None
        rows, old_counts = np.flatnonzero(kept), self.counts.astype(np.int64)
        counts = np.minimum(old_counts, most)[rows]
        starts, begins = (np.cumsum(old_counts) - old_counts)[rows], np.cumsum(counts) - counts
        index = np.arange(counts.sum()) + np.repeat(starts - begins, counts)
        tokens, single = self.tokens[index], bool((counts == 1).all())
        selected = ResultColumns(
            self.slots[rows], self.first[rows], counts.astype("u1"), tokens, single
        )
        return selected, index


def columns(result: Result, num_slots: int, flight: InFlightStep | None = None) -> ResultColumns:
    """Unpack a result. Raises `WireError` for anything that no correct worker sends.

    Rows equal to those of the in-flight step, the usual case, need no further checks.
    """
    same = flight is not None and result.rows == flight.wire
    try:
        slots = flight.rows if flight and same else _slots(result.rows, num_slots)
        first = np.frombuffer(result.first, "<u4")
        counts = np.frombuffer(result.counts, np.uint8)
        tokens = np.frombuffer(result.tokens, "<i4")
        if result.logprobs is not None:
            check(result.logprobs, len(tokens))
    except ValueError as error:
        raise WireError(f"a column is not whole items: {error}") from error
    single = result.counts.count(1) == len(counts)
    number = len(counts) if single else int(counts.sum())
    if not len(slots) == len(first) == len(counts) or number != len(tokens):
        raise WireError("the columns of a result have different lengths")
    if any(len(column) not in (0, len(counts)) for column in (result.drafted, result.accepted)):
        raise WireError("the columns of a result have different lengths")
    named = [*result.finished, *result.failed, *(p.slot for p in result.prompt_logprobs)]
    if any(not 0 <= slot < num_slots for slot in named):
        raise WireError("a result names a slot that does not exist")
    return ResultColumns(slots, first, counts, tokens, single)


def pooled_vectors(result: Result, num_slots: int) -> dict[int, bytes]:
    """Slot -> pooled vector. Raises `WireError` as `columns` does."""
    try:
        vectors = split(result.pooled)
    except ValueError as error:
        raise WireError(f"a result cannot be read: {error}") from error
    if any(slot >= num_slots for slot in vectors):
        raise WireError("a vector names a slot that does not exist")
    return vectors


def _slots(column: bytes, num_slots: int) -> Ints:
    slots = np.frombuffer(column, "<u4").astype(np.int64)
    if slots.max(initial=0) >= num_slots:
        raise WireError("a result names a slot that does not exist")
    if np.bincount(slots, minlength=1).max() > 1:
        raise WireError("a result names a slot twice")
    return slots


def slot_set(column: bytes) -> set[int]:
    """The slots of a column. Raises `WireError` if it is invalid."""
    try:
        return set(unpack(column, "I"))
    except ValueError as error:
        raise WireError("a column has a broken size") from error
