"""Fields that are rejected by name."""

from __future__ import annotations

from itertools import product

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.unsupported import (
    FORBIDDEN,
    UNSUPPORTED,
    refuse,
    refuse_template_names,
)


def test_forbidden_even_when_empty() -> None:
    for field, value in product(FORBIDDEN, (None, {}, "", 1)):
        with pytest.raises(InvalidRequest) as caught:
            refuse({"model": "m", field: value})
        assert (caught.value.code, caught.value.param) == ("field_not_allowed", field)


def test_unsupported_unless_switched_off() -> None:
    for field, advice in UNSUPPORTED.items():
        for nothing in (None, False, "", []):
            refuse({field: nothing})
        with pytest.raises(InvalidRequest) as caught:
            refuse({field: "x"})
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)
        assert advice in caught.value.message


def test_template_variables() -> None:
    refuse_template_names({"enable_thinking": True, "custom": [1]})
    for name in ("messages", "_private", "add_generation_prompt"):
        with pytest.raises(InvalidRequest) as caught:
            refuse_template_names({name: 1})
        assert caught.value.param == f"chat_template_kwargs.{name}"
