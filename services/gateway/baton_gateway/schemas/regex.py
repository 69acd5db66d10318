"""Limits of a client's regular expression; its syntax is the compiler's affair."""

from __future__ import annotations

import re

from baton_gateway.errors import invalid
from baton_gateway.schemas.jsonschema import MAX_PATTERN, complex_grammar, repeats_too_often


def check_regex(pattern: str, param: str) -> None:
    """Raise `InvalidRequest` for what is too long, repeats too often or looks around."""
    if len(pattern) > MAX_PATTERN:
        raise complex_grammar(param, f"the expression has more than {MAX_PATTERN} characters")
    if repeats_too_often(pattern):
        raise complex_grammar(param, "a part of the expression is repeated too often")
    if found := re.search(r"\(\?<?[=!]", pattern):
        raise invalid(
            param,
            f"Unsupported value: look-around '{found[0]}' cannot be used here.",
            "unsupported_value",
        )
