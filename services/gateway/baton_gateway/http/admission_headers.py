"""What the scheduler says of a request before its first token, as headers of the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton.protocol import QueueEstimate

R = TypeVar("R", bound=Response)


@dataclass(slots=True)
class AdmissionHeaders:
    """Filled in by the engine: by the time a response begins, its first token exists.

    - X-Queue-Position: how many sequences were to run before it when it arrived
    - X-Estimated-TTFT-Ms: milliseconds to its first token, as estimated then
    - X-Cache-Report: why no more of its prompt was cached, and the first token that was not
    """

    explain: bool = False
    """The client asks for the last of them."""
    estimate: QueueEstimate | None = None

    @classmethod
    def of(cls, request: Request) -> AdmissionHeaders:
        """What the client asks for with `X-Cache-Report: 1`. Raises `InvalidRequest`."""
        header = request.headers.get("x-cache-report", "0")
        if header not in {"0", "1"}:
            raise InvalidRequest(
                "Invalid X-Cache-Report header: expected 0 or 1.", code="invalid_value"
            )
        return cls(header == "1")

    def update(self, note: QueueEstimate) -> None:
        """Hear of a sequence. Only the first place that a request had counts."""
        if self.estimate is None:
            self.estimate = note

    def apply(self, response: R) -> R:
        """The response, with the headers."""
        note = self.estimate
        if note is not None:
            response.headers["x-queue-position"] = str(note.position)
            if note.ttft_ms >= 0:
                response.headers["x-estimated-ttft-ms"] = str(note.ttft_ms)
            if note.miss_reason:
                response.headers["x-cache-report"] = (
                    f"{note.miss_reason}; token={note.miss_position}"
                )
        return response
