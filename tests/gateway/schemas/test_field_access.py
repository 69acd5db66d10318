"""Fields of free-form objects."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.chat_messages import MAX_MESSAGES
from baton_gateway.schemas.field_access import array_of, field_of, kind_of, object_of, string_of


def test_what_fits_is_returned() -> None:
    value = {"type": "a", "b": [1]}
    assert array_of(field_of(value, "b", "p"), "p.b") == [1]
    assert object_of(value, "p") is value and string_of(value, "type", "p") == "a"
    assert kind_of(value, "p", ("a",), {}) == "a"


def test_what_does_not_is_named() -> None:
    tries = {
        "p": (lambda: array_of([], "p"), lambda: array_of({}, "p"), lambda: object_of([], "p")),
        "p.b": (lambda: field_of({}, "b", "p"), lambda: string_of({"b": 5}, "b", "p")),
        "p.type": (
            lambda: kind_of({"type": "b"}, "p", ("a",), {}),
            lambda: kind_of({}, "p", (), {}),
        ),
    }
    for param, calls in tries.items():
        for call in calls:
            with pytest.raises(InvalidRequest) as caught:
                call()
            assert caught.value.param == param
    with pytest.raises(InvalidRequest, match="too long"):
        array_of([0] * (MAX_MESSAGES + 1), "p")
    with pytest.raises(InvalidRequest, match="Use c"):
        kind_of({"type": "b"}, "p", ("a",), {"b": "Use c."})
