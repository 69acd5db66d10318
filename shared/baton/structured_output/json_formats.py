"""Exact regular expressions for JSON Schema `format`, where the engine's own are inexact.

RFC 3339 for dates and times, RFC 3986 for addresses. There is no year 0000, as in most calendar
libraries, and a leap second is valid only in UTC: 23:59:60 followed by Z or an offset of zero.
"""

from __future__ import annotations

_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
"""04, 08 .. 96"""
_LEAP = rf"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
_HOUR, _FRACTION = r"(?:[01][0-9]|2[0-3])", r"(?:\.[0-9]+)?"
_TIME = (
    rf"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"
    rf"|23:59:60{_FRACTION}(?:[Zz]|[+-]00:00))"
)
_H = r"[0-9A-Fa-f]{1,4}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LAST = rf"(?:{_H}:{_H}|{_BYTE}(?:\.{_BYTE}){{3}})"


def _ipv6() -> str:
    """`IPv6address` of RFC 3986, section 3.2.2, line by line."""

    def before(most: int) -> str:
        return rf"(?:(?:{_H}:){{0,{most - 1}}}{_H})?" if most else ""

    lines = [rf"(?:{_H}:){{6}}{_LAST}"]
    lines += [rf"{before(5 - n)}::(?:{_H}:){{{n}}}{_LAST}" for n in range(5, -1, -1)]
    lines += [rf"{before(6)}::{_H}", rf"{before(7)}::"]
    return "|".join(lines)


FORMATS = {
    "date": f"^(?:{_DATE})$",
    "time": f"^(?:{_TIME})$",
    "date-time": f"^(?:{_DATE}[Tt]{_TIME})$",
    "ipv6": f"^(?:{_ipv6()})$",
}
"""Format -> a pattern that matches exactly the valid strings."""
