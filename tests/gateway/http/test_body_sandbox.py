"""What the parsing child answers."""

from __future__ import annotations

import msgspec
import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body_sandbox import ParsedBody, pack, parsed


def test_integers_of_any_size_come_through() -> None:
    value = {"a": [2**64, {"b": -(10**250)}, 2**64 - 1], "c": True}
    assert ParsedBody(msgspec.Raw(pack(value))).object() == value


def test_a_refusal_keeps_its_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(b'{"a": 1, "a": 1}').object()
    assert (caught.value.param, caught.value.status) == ("a", 400)
    assert parsed(b'{"a": 1}').object() == {"a": 1}
