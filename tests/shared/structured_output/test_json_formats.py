"""Formats against the standard library, value by value."""

from __future__ import annotations

import ipaddress
import re
from datetime import date
from random import Random

import pytest

from baton.structured_output.json_formats import FORMATS

pytestmark = pytest.mark.row("F10.01")


def has(name: str, text: str) -> bool:
    return re.search(FORMATS[name].replace("$", r"\Z"), text) is not None


def is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def test_every_day_of_every_kind_of_year() -> None:
    for year in ("0000", "0004", "1600", "1900", "1999", "2000", "2023", "2024", "2100", "9999"):
        for month in range(15):
            for day in range(34):
                text = f"{year}-{month:02}-{day:02}"
                assert has("date", text) == is_date(text), text


def test_the_last_of_february_in_every_year() -> None:
    for year in range(10_000):
        text = f"{year:04}-02-29"
        assert has("date", text) == is_date(text), text


def test_times() -> None:
    for good in ("00:00:00Z", "23:59:59.999z", "12:30:00+14:00", "23:59:60Z", "23:59:60.1+00:00"):
        assert has("time", good) and has("date-time", f"2024-02-29T{good}")
    for bad in ("24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "1:00:00Z", "12:00:00.Z",
                "23:59:60+01:00", "12:00:00+24:00"):  # fmt: skip
        assert not has("time", bad) and not has("date-time", f"2024-02-29T{bad}")
    assert not has("date-time", "2023-02-29T00:00:00Z")
    assert not has("date-time", "2023-02-28 00:00:00Z")


def is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def test_ipv6() -> None:
    random, found = Random(0), 0
    parts = ["0", "a", "FFFF", "1.2.3.4", "255.256.0.1", "", "10000", "g"]
    weights = [6, 6, 3, 1, 0.2, 2, 0.2, 0.1]
    for _ in range(20_000):
        text = ":".join(random.choices(parts, weights, k=random.randint(2, 9)))
        assert has("ipv6", text) == is_ipv6(text), text
        found += is_ipv6(text)
    assert found > 500
    for text in ("::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"):
        assert has("ipv6", text) and is_ipv6(text)
