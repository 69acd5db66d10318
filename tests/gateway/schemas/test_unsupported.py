"""Fields that are rejected by name."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.unsupported import (
    FORBIDDEN,
    UNSUPPORTED,
    refuse,
    refuse_template_names,
)


@pytest.mark.parametrize("field", sorted(FORBIDDEN))
def test_forbidden_even_when_empty(field: str) -> None:
    for value in (None, {}, "", 1):
        with pytest.raises(InvalidRequest) as caught:
            refuse({"model": "m", field: value})
        assert (caught.value.code, caught.value.param) == ("field_not_allowed", field)


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_unsupported_unless_switched_off(field: str) -> None:
    for nothing in (None, False, "", []):
        refuse({field: nothing})
    with pytest.raises(InvalidRequest) as caught:
        refuse({field: "x"})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)
    assert UNSUPPORTED[field] in caught.value.message


def test_template_variables() -> None:
    refuse_template_names({"enable_thinking": True, "custom": [1]})
    for name in ("messages", "_private", "add_generation_prompt"):
        with pytest.raises(InvalidRequest) as caught:
            refuse_template_names({name: 1})
        assert caught.value.param == f"chat_template_kwargs.{name}"
