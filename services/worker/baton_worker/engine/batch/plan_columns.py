"""The columns of a plan, as arrays; a plan that cannot be right is refused as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton.errors import BatonError

Column = npt.NDArray[np.int64]


class PlanError(BatonError):
    """A plan contradicts what the worker holds; only a restart brings the two together again."""

    code = "bad_plan"


def column(data: bytes, kind: str) -> Column:
    """The numbers of a column, int64; `kind` is their type on the wire, such as "<u4".

    Raises:
        PlanError: the last number is cut off.
    """
    try:
        return np.frombuffer(data, kind).astype(np.int64)
    except ValueError as error:
        raise PlanError(f"A column of a plan is cut off: {error}.") from error


def check_lengths(what: str, *columns: Column | npt.NDArray[np.bool_]) -> None:
    """Parallel columns have one length.

    Raises:
        PlanError: they do not.
    """
    if any(len(column) != len(columns[0]) for column in columns):
        raise PlanError(f"The {what} columns of a plan disagree in length.")
