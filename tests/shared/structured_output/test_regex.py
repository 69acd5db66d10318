"""Translated patterns match as in ECMA-262."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.structured_output.regex import PatternError, translate
from tests.fakes.grammar_cases import Reader, schema

pytestmark = pytest.mark.row("F10.01")


def matching(pattern: str, *texts: str) -> list[str]:
    reader = Reader(schema({"type": "string", "pattern": pattern}))
    return [text for text in texts if reader.accepts_value(text)]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^.$", "aé\u0085", "\n\r\u2028\u2029"),
        (r"^\s$", " \t\u00a0\ufeff\u2028", "a\u0085\u180e"),
        (r"^\S$", "aé\u0085", " \ufeff"),
        (r"^[\s,]$", ",\ufeff", "s"),
        (r"^[^\S,]$", " \ufeff", ",a"),
        (r"^[^\s]$", "a,", " \ufeff"),
        (r"^\d$", "09", "\u0663"),
        (r"^[\w-]$", "a_9-", "é,"),
        ("^[a&&b]$", "a&b", "c"),
        ("^[a~~b]$", "a~b", "c"),
        ("^[a-c--b]$", "abc", ""),
        ("^[[a]$", "[a", "]"),
        ("^[[:alpha:]$", "[:alph", "b]"),
        ("^[a(?:]$", "a(?:", "b"),
        ("^[+--]$", "+,-", "."),
        ("^[-a]$", "-a", "b"),
        (r"^[\d-x]$", "5-x", "a"),
        (r"^[a\]b]$", "a]b", "c"),
        (r"^[\b]$", "\b", "b"),
        (r"^[^a\-c]$", "b", "a-c"),
        ("^[\\u0041-\\x43]$", "ABC", "D"),
        (r"^\u00e9$", "é", "e"),
        (r"^\u{1F600}$", "\U0001f600", "u"),
        (r"^\cC$", "\x03", "C"),
        (r"^\0$", "\0", "0"),
        (r"^\/\-\.\&$", ["/-.&"], ["/-x&"]),
        (r"^(?<year>a|b)(?:c)?$", ["a", "bc"], ["c"]),
        (r"^\p{L}$", "aé", "1"),
        ("^]$", "]", "a"),
    ],
)
def test_dialect(pattern: str, good: Any, bad: Any) -> None:
    assert matching(pattern, *good) == list(good)
    assert matching(pattern, *bad) == []


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
        ("(?=a)", "look-around"),
        ("(?!a)", "look-around"),
        ("(?<=a)", "look-around"),
        (r"(a)\1", "back-references"),
        (r"\bfoo\b", "assertions"),
        (r"foo\Z", "assertions"),
        (r"\h", "cannot be used"),
        (r"\x4", "cannot be used"),
        (r"\p", "name in braces"),
        (r"\ud83d\ude00", "is no character"),
        (r"\u{110000}", "is no character"),
        ("[]a]", "not escaped"),
        ("[^]", "not escaped"),
        ("[a", "never closed"),
        ("[z-a]", "is no range"),
        ("a\\", "cannot be used"),
    ],
)
def test_refused(pattern: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        translate(pattern)


ALPHABET = "ab-]^[&~."
MEMBERS = st.sampled_from(
    ["a", "b", r"\-", "&&", "~~", "^", r"\]", "a-b", r"\d", r"\w", ".", "--."]
)
CLASSES = st.builds(lambda n, m: f"[{n}{''.join(m)}]", st.sampled_from(["", "^"]),
                    st.lists(MEMBERS, min_size=1, max_size=4))  # fmt: skip
ATOMS = st.one_of(st.sampled_from(["a", "b", r"\.", r"\d", "(?:a|b)", "a?", "b+"]), CLASSES)


@settings(max_examples=150, deadline=None)
@given(st.lists(ATOMS, min_size=1, max_size=4).map("".join), st.text(ALPHABET, max_size=4))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_equals_python_where_python_is_the_same(pattern: str, text: str) -> None:
    try:
        wanted = re.fullmatch(pattern, text, re.ASCII) is not None
        translated = translate(f"^(?:{pattern})$")
    except (re.error, PatternError):
        return
    # Of the translation Python understands everything but the spelling of code points.
    python = re.sub(r"\\x\{([0-9A-F]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", translated)
    assert (re.search(python, text, re.ASCII) is not None) == wanted
    assert bool(matching(f"^(?:{pattern})$", text)) == wanted
