"""Status of a row from its tests."""

from __future__ import annotations

import msgspec
import pytest

from baton_ops.support_matrix.feature_rows import Result, status


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], "absent"),
        ([("passed", "works")], "works"),
        ([("passed", "works"), ("passed", "works")], "works"),
        ([("passed", "works"), ("skipped", "works")], "absent"),
        ([("failed", "works")], "absent"),
        ([("xfailed", "works")], "absent"),
        ([("passed", "refuses")], "refuses"),
        ([("skipped", "refuses")], "absent"),
        ([("passed", "refuses"), ("passed", "works")], "works"),
    ],
)
def test_status_of_a_row(results: list[tuple[str, str]], expected: str) -> None:
    found = [
        msgspec.convert({"test": "t", "outcome": outcome, "kind": kind}, Result)
        for outcome, kind in results
    ]
    assert status(found) == expected
