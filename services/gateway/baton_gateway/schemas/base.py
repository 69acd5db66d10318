"""Base of all requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from baton_gateway.schemas.unsupported import refuse


class Request(BaseModel):
    """Strict JSON types, null means the default, names are checked."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", protected_namespaces=(), hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: Any) -> Any:
        refuse(value)
        return {k: v for k, v in value.items() if v is not None or k in cls._not_null()}

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"model"})
