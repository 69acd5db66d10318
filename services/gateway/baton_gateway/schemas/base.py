"""Base of all requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from baton_gateway.schemas.unsupported import refuse


class Request(BaseModel):
    """Strict JSON types; null means the default; unknown fields are checked."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", protected_namespaces=(), hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: Any) -> Any:
        refuse(value, cls._special())
        return {k: v for k, v in value.items() if v is not None or k in cls._not_null()}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Say that null means the default."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        for name, field in schema.get("properties", {}).items():
            optional = name not in {*schema.get("required", ()), *cls._not_null()}
            if optional and {"type": "null"} not in field.get("anyOf", []):
                schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}
        return schema

    @classmethod
    def _special(cls) -> frozenset[str]:
        """Fields that only this request supports; others refuse them by name."""
        return frozenset()

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"model"})
