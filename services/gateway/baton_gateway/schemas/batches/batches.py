"""Requests of OpenAI's batch API.

https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from baton_gateway.http.errors import invalid, wrong_type
from baton_gateway.schemas.base import Request
from baton_gateway.schemas.fields import Metadata

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
_MOST_HOURS = 168


def _window(value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type("completion_window", "a string", value)
    match = _WINDOW.fullmatch(value)
    if match is None or int(match[1]) > _MOST_HOURS:
        raise invalid(
            "completion_window",
            f"Invalid 'completion_window': expected hours, as in '24h', at most {_MOST_HOURS}h.",
        )
    return value


class ExpiresAfter(BaseModel):
    """`output_expires_after`: when the files that a batch writes are deleted."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class CreateBatchRequest(Request):
    """POST /v1/batches"""

    input_file_id: str = Field(max_length=100)
    endpoint: Endpoint
    completion_window: Annotated[str, BeforeValidator(_window)]
    metadata: Metadata = {}
    output_expires_after: ExpiresAfter | None = None

    @property
    def seconds(self) -> int:
        """The completion window."""
        return 3600 * int(self.completion_window[:-1])
