"""Fields that several APIs share name the exact place of an error."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from baton.errors import InvalidRequest
from baton_gateway.schemas import fields


@pytest.mark.parametrize(
    ("kind", "given", "valid"),
    [
        (fields.ModelName, "org/model-1", "org/model-1"),
        (fields.StopStrings, "x", ("x",)),
        (fields.LogitBias, {"5": 1}, {5: 1.0}),
        (fields.AllowedIds, [3, 4], (3, 4)),
        (fields.BadWords, ["a"], ("a",)),
    ],
)
def test_valid_values_are_converted(kind: Any, given: Any, valid: Any) -> None:
    assert TypeAdapter(kind).validate_python(given) == valid


@pytest.mark.parametrize(
    ("kind", "given", "param"),
    [
        (fields.ModelName, "a/../b", "model"),
        (fields.StopStrings, [""], "stop"),
        (fields.LogitBias, {"-5": 1}, "logit_bias"),
        (fields.StopIds, [1, "2"], "stop_token_ids[1]"),
        (fields.AllowedIds, [], "allowed_token_ids"),
        (fields.BadWords, ["a", " "], "bad_words[1]"),
        (fields.TemplateKwargs, {"messages": 1}, "chat_template_kwargs.messages"),
        (fields.Metadata, {"a": 1}, "metadata"),
    ],
)
def test_errors_name_the_field(kind: Any, given: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TypeAdapter(kind).validate_python(given)
    assert caught.value.param == param
