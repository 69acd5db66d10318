"""Translation of grammars for llguidance, and errors for unsupported ones."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from baton.protocol import Grammar
from baton.structured_output import llguidance as grammar
from baton.structured_output.llguidance import (
    GrammarError,
    Problem,
    limits,
    problem,
    translate,
)


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def accepts(one: Grammar, text: str) -> bool:
    """Whether a text is a complete output."""
    tokenizer = LLTokenizer(TokenizerWrapper(grammar._TrialTokens()))
    matcher = LLMatcher(tokenizer, translate(one), limits=limits(), log_level=0)
    assert not matcher.is_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


PAIRS: list[tuple[Grammar, list[str], list[str]]] = [
    (Grammar("json_object", ""), ['{"a": [1, null]}', "{}"], ["[]", "1", '{"a"}']),
    (schema({"type": "integer", "multipleOf": 3}), ["9", "-3", "0"], ["4", "9.5", '"9"']),
    (schema({"enum": ["a/b", None, {"x": 1}]}), ['"a/b"', "null", '{"x":1}'], ['"a"', "{}"]),
    (schema({"type": "string", "minLength": 2, "maxLength": 2}), ['"éé"'], ['"a"', '"aaa"']),
    (schema({"type": "string", "pattern": "b"}), ['"abc"', '"b"'], ['"ac"', '""']),
    (Grammar("regex", "^a|bc$"), ["a", "bc"], ["ac", "abc", "b"]),
    (Grammar("regex", r'/"\d\n'), ['/"1\n'], ['"1\n']),
    (Grammar("choice", '["a","b\\n\\"é"]'), ["a", 'b\n"é'], ["", "b"]),
    (Grammar("grammar", 'root ::= "a" x*\nx ::= [0-9] | "(" x ")"'), ["a", "a1(2)"], ["1", "a("]),
    (Grammar("grammar", 'start: "a" start | "b"'), ["b", "aab"], ["a", "ba"]),
    (
        Grammar("structural_tag", json.dumps({
            "triggers": ["<f"],
            "structures": [{"begin": "<f=a>", "schema": {"type": "boolean"}, "end": "</f>"}],
        })),
        ["", "free < text", "so <f=a>true</f> then <f=a>false</f>"],
        ["<f=a>1</f>", "<f=b>", "<f=a>true", "x <f"],
    ),
]  # fmt: skip


@pytest.mark.row("F10.01", "F10.02", "F10.03", "F10.04", "F10.05", "F10.06")
@pytest.mark.parametrize(("one", "good", "bad"), PAIRS, ids=lambda v: getattr(v, "kind", None))
def test_what_a_grammar_means(one: Grammar, good: list[str], bad: list[str]) -> None:
    assert problem(one) is None
    assert [text for text in good if not accepts(one, text)] == []
    assert [text for text in bad if accepts(one, text)] == []


@pytest.mark.parametrize(
    ("one", "code", "message"),
    [
        (schema({"type": "stsring"}), "invalid_value", "Invalid type: stsring"),
        (schema({"$ref": "#"}), "invalid_value", "nothing matches it"),
        (Grammar("regex", "("), "invalid_value", "unclosed group"),
        (Grammar("regex", "(?=a)b"), "unsupported_value", "look-around"),
        (Grammar("grammar", "start: x"), "invalid_value", 'unknown name: "x"'),
        (Grammar("grammar", "root ::= x"), "invalid_value", "Rule 'x' not found"),
        (
            schema({"properties": {f"p{i}": {"type": "string"} for i in range(3000)}}),
            "grammar_too_complex",
            "",
        ),
    ],
)
def test_problems(one: Grammar, code: str, message: str) -> None:
    found = problem(one)
    assert found is not None and found.code == code and message in found.message


def test_a_compilation_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "CPU_SECONDS", 0.0)
    assert problem(Grammar("json_object", "")) == Problem(
        "grammar_too_complex", "it takes more than 0.0 s to compile"
    )


def test_a_tag_without_a_trigger() -> None:
    tag = {"begin": "<f>", "schema": {}, "end": ""}
    source = json.dumps({"triggers": ["["], "structures": [tag]})
    with pytest.raises(GrammarError, match="<f>"):
        translate(Grammar("structural_tag", source))


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b c", "é", '"'])
    return st.builds(
        lambda properties, optional, more: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties.keys() - optional),
            "additionalProperties": more,
        },
        st.dictionaries(names, inner, max_size=3),
        st.sets(names, max_size=2),
        st.one_of(st.just(False), inner),
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda first, rest, least, more: {
            "type": "array",
            "prefixItems": first,
            "items": rest,
            "minItems": least,
            "maxItems": least + more,
        },
        st.lists(inner, min_size=1, max_size=2),
        inner,
        st.integers(0, 3),
        st.integers(0, 2),
    )


LEAVES = st.one_of(
    st.sampled_from(
        [
            {"type": ["null", "boolean"]},
            {"type": "string", "pattern": "^[a-c]+x?$", "maxLength": 5},
            {"type": "string", "pattern": "[0-9]b", "maxLength": 9},
            {"type": "string", "format": "ipv4"},
            {"type": "number", "multipleOf": 0.5, "minimum": -2, "exclusiveMaximum": 7},
            {"anyOf": [{"type": "integer", "maximum": 3}, {"const": "é\n"}]},
            {"enum": [1, "1", None, [1, {"a": "b"}], True]},
        ]
    ),
    st.tuples(st.integers(0, 4), st.integers(0, 4)).map(
        lambda p: {"type": "string", "minLength": p[0], "maxLength": sum(p)}
    ),
    st.tuples(st.integers(-200, 200), st.integers(0, 300)).map(
        lambda p: {"type": "integer", "minimum": p[0], "maximum": sum(p)}
    ),
)
SCHEMAS = st.recursive(LEAVES, lambda inner: _objects(inner) | _arrays(inner), max_leaves=6)


@pytest.mark.row("F10.01")
@settings(max_examples=150, deadline=None)
@given(value=SCHEMAS, seed=st.integers(0, 2**32))
def test_whatever_a_grammar_lets_end_is_valid(value: dict[str, Any], seed: int) -> None:
    """A walk that takes any allowed byte, and ends as soon as it may."""
    one, random = schema(value), Random(seed)
    assert problem(one) is None
    tokenizer = LLTokenizer(TokenizerWrapper(grammar._TrialTokens()))
    matcher = LLMatcher(tokenizer, translate(one), limits=limits(), log_level=0)
    written = bytearray()
    while not matcher.is_accepting():
        allowed = [i for i, bias in enumerate(matcher.compute_logit_bias()[:256]) if bias]
        # Closing what is open comes first most of the time, so that the walk ends.
        closing = [i for i in allowed if i in b'"]}'] if random.random() < 0.8 else []
        written.append(random.choice(closing or allowed))
        assert matcher.consume_token(written[-1]) and len(written) < 5000
    validator = jsonschema.Draft202012Validator(
        value, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    validator.validate(json.loads(written.decode()))


TOO_COMPLEX = [
    (Grammar("regex", "a?" * 500), "200000"),
    (Grammar("regex", "([a-z]?[a-y]?[a-x]?)" * 40), "200000"),
    (Grammar("regex", "((a{0,30}){0,30}){0,30}"), "200000"),
    (schema({"type": "string", "pattern": "^(a{0,512}){0,512}$"}), "200000"),
    (Grammar("grammar", "start: " + '"a"? ' * 400), "500"),
    (Grammar("grammar", 'start: /[ab]{20}/ rest\nrest: "yx" rest'), "endless"),
]


def test_what_would_stop_in_the_middle_of_an_output_is_refused() -> None:
    for one, limit in TOO_COMPLEX:
        found = problem(one)
        assert found is not None and found.code == "grammar_too_complex", one
        assert limit in found.message, one


def test_ambiguity_that_costs_every_token_much_is_refused() -> None:
    found = problem(Grammar("grammar", "start: " + "x " * 10 + '\nx: "a" | "aa" | x x | ""'))
    assert found is not None and found.code == "grammar_too_complex"


def test_a_worker_has_more_fuel_than_a_trial() -> None:
    trial, worker = limits("regex", trial=True), limits("regex")
    assert worker.step_lexer_fuel >= 10 * trial.step_lexer_fuel
    assert worker.initial_lexer_fuel >= 10 * trial.initial_lexer_fuel
