"""What a grammar accepts, byte by byte, and the cases of the official JSON Schema test suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from baton.protocol import Grammar
from baton.structured_output import llguidance as grammar
from baton.structured_output.llguidance import limits, translate

SUITE = Path(__file__).parent.parent / "data" / "json-schema-2020-12.jsonl"
"""https://github.com/json-schema-org/JSON-Schema-Test-Suite, draft 2020-12, one case per line.

Its licence is beside it. The optional part holds the formats and the dialect of patterns.
"""
_MOST = 200
"""Serialisations of one value that are tried."""

_tokenizer = LLTokenizer(TokenizerWrapper(grammar._TrialTokens()))


@dataclass(frozen=True)
class Case:
    """One schema of the suite with its instances."""

    file: str
    name: str
    schema: Any
    tests: tuple[tuple[str, Any, bool], ...]
    """Description, instance, whether it is valid."""


def suite() -> list[Case]:
    """All cases in the order of their files."""
    lines = map(json.loads, SUITE.read_text().splitlines())
    return [Case(c["file"], c["case"], c["schema"], tuple(map(tuple, c["tests"]))) for c in lines]


def schema(value: Any) -> Grammar:
    """A schema as a grammar."""
    return Grammar("json_schema", json.dumps(value))


class Reader:
    """Tells which texts are complete outputs of one grammar."""

    def __init__(self, one: Grammar) -> None:
        self._matcher = LLMatcher(_tokenizer, translate(one), limits=limits(), log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def accepts(self, text: str) -> bool:
        """Whether this text is one."""
        matcher = self._matcher.deep_copy()
        return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())

    def accepts_value(self, value: Any) -> bool:
        """Whether any way to write this value as JSON is one."""
        return any(self.accepts(text) for text in islice(spellings(value), _MOST))


def spellings(value: Any) -> Iterator[str]:
    """Ways to write a value: members of objects in any order, `1.0` also as `1`."""
    match value:
        case dict():
            for order in permutations(value.items()):
                for values in product(*(list(islice(spellings(v), 6)) for _, v in order)):
                    pairs = zip(order, values, strict=True)
                    yield "{" + ",".join(f"{_text(k)}:{text}" for (k, _), text in pairs) + "}"
        case list():
            for items in product(*(list(islice(spellings(v), 6)) for v in value)):
                yield "[" + ",".join(items) + "]"
        case float() if value.is_integer():
            yield str(int(value))
            yield _text(value)
        case _:
            yield _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
