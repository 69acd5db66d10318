"""Constraints of requests. Rejections are tested in `tests/gateway/test_corpus.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.protocol import Grammar, Submit
from baton_gateway.structured_output.request import Constraint, check_regex, constraint
from tests.fakes.gateway_app import Site

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAGS = {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]}
TAGS_TEXT = json.dumps(
    {"structures": TAGS["structures"], "triggers": TAGS["triggers"]}, separators=(",", ":")
)

ASKED: list[tuple[dict[str, Any], Constraint | None]] = [
    ({}, None),
    ({"response_format": {"type": "text"}}, None),
    (
        {"response_format": {"type": "json_object"}},
        Constraint(Grammar("json_object", ""), "response_format"),
    ),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        Constraint(Grammar("json_schema", TEXT), "response_format"),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "r", "schema": SCHEMA, "strict": True},
            }
        },
        Constraint(Grammar("json_schema", TEXT), "response_format", "r"),
    ),
    (
        {"response_format": {"type": "structural_tag", **TAGS}},
        Constraint(Grammar("structural_tag", TAGS_TEXT), "response_format"),
    ),
    *(
        (
            {"structured_outputs": {kind: value, "regex": None}},
            Constraint(grammar, f"structured_outputs.{kind}"),
        )
        for kind, value, grammar in (
            ("json", SCHEMA, Grammar("json_schema", TEXT)),
            ("json", TEXT, Grammar("json_schema", TEXT)),
            ("choice", ["a", "b"], Grammar("choice", '["a","b"]')),
            ("grammar", "start: /a/", Grammar("grammar", "start: /a/")),
            ("json_object", True, Grammar("json_object", "")),
            ("structural_tag", json.dumps(TAGS), Grammar("structural_tag", TAGS_TEXT)),
        )
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        Constraint(Grammar("json_schema", TEXT, compact=True), "structured_outputs.json"),
    ),
    (
        {"structured_outputs": {"regex": "a+", "disable_any_whitespace": False}},
        Constraint(Grammar("regex", "a+"), "structured_outputs.regex"),
    ),
    ({"guided_json": SCHEMA}, Constraint(Grammar("json_schema", TEXT), "guided_json")),
    ({"guided_regex": "a+"}, Constraint(Grammar("regex", "a+"), "guided_regex")),
    ({"guided_choice": ["a"]}, Constraint(Grammar("choice", '["a"]'), "guided_choice")),
    (
        {"guided_grammar": "start: /a/"},
        Constraint(Grammar("grammar", "start: /a/"), "guided_grammar"),
    ),
]


@pytest.mark.row("F10.06")
@pytest.mark.parametrize(("fields", "found"), ASKED)
def test_what_is_asked_for(fields: dict[str, Any], found: Constraint | None) -> None:
    assert constraint(fields) == found


@pytest.mark.row("F10.01", "F10.06")
@pytest.mark.parametrize(("fields", "found"), ASKED)
def test_it_reaches_the_scheduler(
    own_site: Site, fields: dict[str, Any], found: Constraint | None
) -> None:
    """From both endpoints, whole and streamed."""
    answers = [own_site.chat(**fields), own_site.chat(stream=True, **fields)]
    answers.append(own_site.complete(**fields))
    assert [a.status_code for a in answers] == [200] * 3
    submits = [m for m in own_site.engine.scheduler.seen if isinstance(m, Submit)]
    assert [s.sampling.grammar for s in submits] == [found and found.grammar] * 3


def test_a_refused_grammar_reaches_nobody(own_site: Site) -> None:
    assert own_site.chat(guided_regex="(").status_code == 400
    assert not any(isinstance(m, Submit) for m in own_site.engine.scheduler.seen)


def test_two_at_once() -> None:
    with pytest.raises(InvalidRequest, match="only one constraint"):
        constraint({"guided_regex": "a", "guided_choice": ["a"]})


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
