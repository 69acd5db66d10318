"""Decodes the columns of a plan; an inconsistent plan is refused as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton.errors import BatonError

Column = npt.NDArray[np.int64]


class PlanError(BatonError):
    """A plan contradicts the worker's batch; a restart is needed to resynchronize."""

    code = "bad_plan"


def column(data: bytes, kind: str) -> Column:
    """Decode a column to int64; `kind` is its type on the wire, such as "<u4".

    Raises:
        PlanError: its length is not a multiple of the item size.
    """
    try:
        return np.frombuffer(data, kind).astype(np.int64)
    except ValueError as error:
        raise PlanError(f"A column of a plan is cut off: {error}.") from error


def check_lengths(what: str, *columns: Column | npt.NDArray[np.bool_]) -> None:
    """Check that parallel columns have equal lengths.

    Raises:
        PlanError: they do not.
    """
    if any(len(column) != len(columns[0]) for column in columns):
        raise PlanError(f"The {what} columns of a plan disagree in length.")
