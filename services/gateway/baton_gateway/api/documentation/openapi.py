"""Builds the OpenAPI document from the types that parse requests and encode responses.

    pydantic models of requests ---+
    msgspec types of answers ------+--> components --> paths of the routes

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from baton import __version__
from baton_gateway.api.documentation.description import Description, description_of
from baton_gateway.http.error_formats import AnthropicError, is_messages
from baton_gateway.http.errors import ErrorResponse

Schemas: TypeAlias = dict[Any, dict[str, Any]]
"""Type -> its JSON schema."""
_REFERENCE = "#/components/schemas/{}"
_SECURITY = {"ApiKey": {"type": "http", "scheme": "bearer"}}


def openapi(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the document of all routes that are not hidden."""
    shown = [r for r in routes if isinstance(r, APIRoute) and r.include_in_schema]
    document = get_openapi(title="Baton", version=__version__, routes=shown)
    bodies, requests = _bodies(shown)
    answers, responses = _answers(shown)
    assert not requests.keys() & responses.keys(), "two types have one name"
    for route in shown:
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            _complete(operation, route, bodies, answers)
    document["components"] = {
        "schemas": dict(sorted((requests | responses).items())),
        "securitySchemes": _SECURITY,
    }
    document["security"] = [{"ApiKey": []}, {}]
    return document


def _complete(
    operation: dict[str, Any], route: APIRoute, bodies: Schemas, answers: Schemas
) -> None:
    """Put the types of an endpoint into its operation, instead of FastAPI's assumptions."""
    described = description_of(route.endpoint)
    operation["tags"] = [route.endpoint.__module__.rpartition(".")[2]]
    operation["summary"] = operation.pop("description", route.path).split("\n")[0]
    if described.body is not None:
        operation["requestBody"] = {"content": _json(bodies[described.body]), "required": True}
    if described.form is not None:
        content = {"multipart/form-data": {"schema": _form(described.form, described.file)}}
        operation["requestBody"] = {"content": content, "required": True}
    error = AnthropicError if is_messages(route.path) else ErrorResponse
    operation["responses"] = {
        "200": {"description": "The answer.", "content": _content(described, answers)},
        "default": {"description": "An error.", "content": _json(answers[error])},
    }


def _form(fields: type[BaseModel], file: str) -> dict[str, Any]:
    """Schema of a form: its fields, and its file."""
    schema = fields.model_json_schema()
    properties = schema.get("properties", {}) | {file: {"type": "string", "format": "binary"}}
    return schema | {"properties": properties, "required": [*schema.get("required", ()), file]}


def _content(described: Description, answers: Schemas) -> dict[str, Any]:
    content = {described.media_type: {"schema": {"type": "string"}}} if described.media_type else {}
    if described.answer is not None:
        content |= _json(answers[described.answer])
    if described.events is not None:
        # OpenAPI 3.1 cannot describe the events of a stream; 3.2 has `itemSchema` for it.
        schema = {"type": "string", "contentMediaType": "application/json"}
        content["text/event-stream"] = {"schema": schema, "itemSchema": answers[described.events]}
    return content


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _bodies(routes: Iterable[APIRoute]) -> tuple[Schemas, dict[str, Any]]:
    """Return the schema of every request by its model, and the components that they refer to."""
    models = [description_of(route.endpoint).body for route in routes]
    schemas, components = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models) if model is not None],
        ref_template=_REFERENCE.format("{model}"),
    )
    return {model: schema for (model, _), schema in schemas.items()}, components["$defs"]


def _answers(routes: Iterable[APIRoute]) -> tuple[Schemas, dict[str, Any]]:
    """Return the schema of every response by its type, and the components that they refer to."""
    described = [description_of(route.endpoint) for route in routes]
    types = [t for d in described for t in (d.answer, d.events) if t is not None]
    types = [*dict.fromkeys(types), ErrorResponse, AnthropicError]
    schemas, components = msgspec.json.schema_components(
        types, ref_template=_REFERENCE.format("{name}")
    )
    return dict(zip(types, schemas, strict=True)), dict(components)
