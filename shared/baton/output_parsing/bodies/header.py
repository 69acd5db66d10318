"""Reads the short texts between delimiters: names of functions and of arguments."""

from __future__ import annotations

import re

from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Delimiters, Reader, Source

NAME = re.compile(r"[\w./:-]{1,256}")
"""What can be a function's name: more than OpenAI's API allows, and never prose."""
NAME_SHAPE = re.compile(r"\s*[\w./:-]{0,256}\s{0,8}")
"""What the beginning of a name looks like, with white space around it."""
KEY_SHAPE = re.compile(r"\s*[^<>\"\n]{0,256}\s{0,8}")
"""The same of an argument's name."""


def header(source: Source, ends: Delimiters, shape: re.Pattern[str]) -> Reader[tuple[str, str]]:
    """Read text of a shape up to a delimiter. Returns both, without white space around the text."""
    text, found = yield from raw_header(source, ends, shape)
    return text.strip(), found


def raw_header(source: Source, ends: Delimiters, shape: re.Pattern[str]) -> Reader[tuple[str, str]]:
    """Read text of a shape up to a delimiter. Returns both.

    The shape fits every beginning of a text that fits it, so that prose is given up early.
    """
    read = ""

    def write(text: str) -> None:
        nonlocal read
        read += text
        if not shape.fullmatch(read):
            raise Malformed("a name is expected")

    found = yield from source.until(ends, write)
    if not found:
        raise Malformed("the text ends")
    return read, found


def name_header(source: Source, ends: Delimiters) -> Reader[tuple[str, str]]:
    """Read a function's name up to a delimiter. Returns both."""
    name, found = yield from header(source, ends, NAME_SHAPE)
    if not NAME.fullmatch(name):
        raise Malformed("a function's name is expected")
    return name, found
