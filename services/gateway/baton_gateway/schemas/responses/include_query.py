"""`include`: what a response or an item shows besides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_NAMES = ("include", "include[]")
"""The parameter is repeated; OpenAI's clients write brackets behind its name."""


class IncludeQuery(BaseModel):
    """Base of the queries of what is stored. It has no effect there: what a response was created
    with is stored, and shown."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    include: Annotated[list[Include], Field(max_length=16)] = []


def query_fields(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The fields of an `IncludeQuery` from the parameters of a URL, in their order."""
    pairs = list(pairs)
    fields: dict[str, Any] = {name: value for name, value in pairs if name not in _NAMES}
    included = [value for name, value in pairs if name in _NAMES]
    return fields | ({"include": included} if included else {})
