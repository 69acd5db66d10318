"""Response headers with the scheduler's queue estimate and prefix cache report."""

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
    """Queue estimate of a request. Filled in by the engine before the response begins.

    - X-Queue-Position: number of sequences ahead of it on arrival
    - X-Estimated-TTFT-Ms: estimated milliseconds to its first token, on arrival
    - X-Cache-Report: reason why no more of the prompt was cached, and the first uncached token
    """

    explain: bool = False
    """True if the client requested X-Cache-Report."""
    estimate: QueueEstimate | None = None

    @classmethod
    def of(cls, request: Request) -> AdmissionHeaders:
        """Parse the request header `X-Cache-Report: 0|1`. Raises `InvalidRequest`."""
        header = request.headers.get("x-cache-report", "0")
        if header not in {"0", "1"}:
            raise InvalidRequest(
                "Invalid X-Cache-Report header: expected 0 or 1.", code="invalid_value"
            )
        return cls(header == "1")

    def update(self, note: QueueEstimate) -> None:
        """Store the estimate of a sequence. Only the first estimate of a request counts."""
        if self.estimate is None:
            self.estimate = note

    def apply(self, response: R) -> R:
        """Add the headers to a response and return it."""
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
