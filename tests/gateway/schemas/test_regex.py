"""Limits of regular expressions."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.regex import check_regex


@pytest.mark.parametrize("pattern", [r"[0-9]{3}-(a|b)+", "(?:a)(?i)b", "a" * 1024])
def test_good(pattern: str) -> None:
    check_regex(pattern, "guided_regex")


@pytest.mark.row("F10.02")
@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("a" * 1025, "grammar_too_complex"),
        ("a{600}", "grammar_too_complex"),
        *((f"({look}a)", "unsupported_value") for look in ("?=", "?!", "?<=", "?<!")),
    ],
)
def test_bad(pattern: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_regex(pattern, "guided_regex")
    assert (caught.value.code, caught.value.param) == (code, "guided_regex")
