"""Request and response types of an endpoint, declared next to its route for `/openapi.json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__baton_description__"


@dataclass(frozen=True, slots=True)
class Description:
    """The types of one endpoint; None where there is none."""

    body: type[BaseModel] | None = None
    """JSON body of the request."""
    answer: Any = None
    """JSON body of the response: a type that msgspec encodes."""
    events: Any = None
    """JSON of one event, for an endpoint that streams."""
    media_type: str = ""
    """Media type of a response that is not JSON."""
    form: type[BaseModel] | None = None
    """Form fields of a multipart request, without its file."""
    file: str = "file"
    """Form field of the file."""


def describe(
    body: type[BaseModel] | None = None,
    answer: Any = None,
    *,
    events: Any = None,
    media_type: str = "",
    form: type[BaseModel] | None = None,
    file: str = "file",
) -> Callable[[F], F]:
    """Return a decorator that gives an endpoint its description."""

    def attach(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, Description(body, answer, events, media_type, form, file))
        return endpoint

    return attach


def description_of(endpoint: Callable[..., Any]) -> Description:
    """Return the description of an endpoint; an empty one if it has none."""
    description: Description = getattr(endpoint, _ATTRIBUTE, Description())
    return description
