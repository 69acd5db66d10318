"""Parsers of short texts between delimiters: names of functions and arguments."""

from __future__ import annotations

import re

from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Delimiters, Reader, Source

NAME = re.compile(r"[\w./:-]{1,256}")
"""Pattern of a function's name: a superset of OpenAI's, that excludes prose."""
NAME_SHAPE = re.compile(r"\s*[\w./:-]{0,256}\s{0,8}")
"""Pattern of the beginning of a name, with surrounding white space."""
KEY_SHAPE = re.compile(r"\s*[^<>\"\n]{0,256}\s{0,8}")
"""The same for an argument's name."""


def header(source: Source, ends: Delimiters, shape: re.Pattern[str]) -> Reader[tuple[str, str]]:
    """Read text of a pattern up to a delimiter. Returns both, without white space around the
    text."""
    text, delimiter = yield from raw_header(source, ends, shape)
    return text.strip(), delimiter


def raw_header(source: Source, ends: Delimiters, shape: re.Pattern[str]) -> Reader[tuple[str, str]]:
    """Read text of a pattern up to a delimiter. Returns both.

    The pattern matches every prefix of a matching text, so that prose is rejected early.
    """
    read = ""

    def write(text: str) -> None:
        nonlocal read
        read += text
        if not shape.fullmatch(read):
            raise Malformed("a name is expected")

    delimiter = yield from source.until(ends, write)
    if not delimiter:
        raise Malformed("the text ends")
    return read, delimiter


def name_header(source: Source, ends: Delimiters) -> Reader[tuple[str, str]]:
    """Read a function's name up to a delimiter. Returns both."""
    name, delimiter = yield from header(source, ends, NAME_SHAPE)
    if not NAME.fullmatch(name):
        raise Malformed("a function's name is expected")
    return name, delimiter
