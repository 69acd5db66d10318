"""Columns as numbers, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol.token_columns import pack
from baton_worker.engine.batch.plan_columns import PlanError, check_lengths, column


def test_a_column_is_wide_numbers() -> None:
    found = column(pack([7, 2**32 - 1], "I"), "<u4")
    assert found.dtype == np.int64 and found.tolist() == [7, 2**32 - 1]
    assert column(b"", "<i4").tolist() == []


def test_a_column_that_is_cut_off_is_refused() -> None:
    with pytest.raises(PlanError, match="cut off"):
        column(b"\0\0\0", "<u4")


def test_parallel_columns_have_one_length() -> None:
    check_lengths("row", np.arange(2), np.array([True, False]))
    with pytest.raises(PlanError, match="drop columns"):
        check_lengths("drop", np.arange(2), np.arange(3))
