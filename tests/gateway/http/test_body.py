"""Arbitrary bytes as a body give either an object or one clean error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import InvalidRequest
from baton_gateway.http.body import (
    DEPTH,
    build,
    check_free_form,
    parse,
)
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.completions import CompletionRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    try:
        assert isinstance(parse(data), dict)
    except InvalidRequest as error:
        assert error.status == 400


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_any_object_survives(value: dict[str, Any]) -> None:
    assert parse(json.dumps(value).encode()) == value


@given(st.sampled_from([ChatRequest, CompletionRequest]), st.sampled_from(FIELDS), VALUES)
def test_any_value_in_any_field(model: Any, field: str, value: Any) -> None:
    """A schema either takes a value or says which field is wrong; nothing else comes out."""
    good = {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    try:
        build(good | {field: value}, model)
    except InvalidRequest as error:
        assert error.status == 400 and error.param is not None


@pytest.mark.parametrize("number", ["1e999", "-Infinity"])
def test_free_form_values_have_finite_numbers(number: str) -> None:
    value = parse(f'{{"a": [{{"minimum": {number}}}]}}'.encode())
    with pytest.raises(InvalidRequest, match="'x': it contains a number that is out of range"):
        check_free_form(value, "x")


def test_depth() -> None:
    value: Any = 1
    for _ in range(DEPTH - 1):
        value = [value]
    check_free_form(value, "x")
    with pytest.raises(InvalidRequest, match="nested"):
        check_free_form({"a": value}, "x")


def test_repeated_key_at_any_level() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"a": {"b": 1, "c": 2, "b": 3}}')
    assert caught.value.param == "b"


def test_half_a_surrogate_pair_and_a_whole_one() -> None:
    assert parse(b'{"a": "\\ud83e\\udee0"}') == {"a": "\U0001fae0"}
    for body, param in ((b'{"a": ["x", "\\udee0"]}', "a[1]"), (b'{"\\ud83e": 1}', None)):
        with pytest.raises(InvalidRequest) as caught:
            parse(body)
        assert (caught.value.code, caught.value.param) == ("null_or_invalid_unicode", param)
