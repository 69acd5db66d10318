"""Requests about adapters: what others must not name, operators may."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.operator.adapters import LoadAdapterRequest, UnloadAdapterRequest


def test_a_path_is_a_field_of_operators_only() -> None:
    body = {"lora_name": "a", "lora_path": "/a", "base_model_name": None}
    loaded = LoadAdapterRequest.model_validate(body)
    assert (loaded.lora_path, loaded.load_inplace, loaded.base_model_name) == ("/a", False, None)
    with pytest.raises(InvalidRequest, match="lora_path"):
        UnloadAdapterRequest.model_validate(body)
