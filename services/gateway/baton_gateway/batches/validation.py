"""Reads the input file of a batch: one JSON request per line."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from baton_gateway.batches.line_format import BatchLine
from baton_gateway.durable.batch_record import BatchError
from baton_gateway.durable.batch_store import Line

_MOST_ERRORS = 50
_MOST_LINE_BYTES = 32 * 1024 * 1024
_decoder = msgspec.json.Decoder(BatchLine)


class InvalidBatch(Exception):
    """A file that cannot be run, with the errors of its lines."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors

    @classmethod
    def because(cls, code: str, message: str) -> InvalidBatch:
        """Create an error of the file as a whole."""
        return cls([BatchError(code, message)])


async def lines_of(parts: AsyncIterator[bytes], endpoint: str, most: int) -> list[Line]:
    """Return the requests of a file. Raises `InvalidBatch` for one that cannot be run.

    Args:
        endpoint: required endpoint of every line.
        most: maximum number of lines.
    """
    lines: list[Line] = []
    errors: list[BatchError] = []
    seen: set[str] = set()
    number = 0
    async for number, text in numbered_lines(parts):
        if len(lines) >= most:
            raise InvalidBatch.because(
                "too_many_lines", f"The file has more than {most} lines. Send it in parts."
            )
        parsed = _line(text, number, endpoint, seen)
        if isinstance(parsed, Line):
            lines.append(parsed)
        else:
            errors.append(parsed)
        if len(errors) >= _MOST_ERRORS:
            break
    if errors:
        raise InvalidBatch(errors)
    if not lines:
        raise InvalidBatch.because("empty_file", "The file has no lines.")
    return lines


def _line(text: bytes, number: int, endpoint: str, seen: set[str]) -> Line | BatchError:
    try:
        line = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return BatchError("invalid_json_line", f"This line is no request: {error}", number)
    if line.custom_id in seen or not line.custom_id:
        problem = "appears twice" if line.custom_id else "is empty"
        return BatchError(
            "duplicate_custom_id", f"The custom_id '{line.custom_id[:64]}' {problem}.", number,
            "custom_id",
        )  # fmt: skip
    if line.url != endpoint:
        return BatchError(
            "mismatched_endpoint",
            f"The url is not the batch's endpoint, {endpoint}.",
            number,
            "url",
        )
    if line.body.get("stream"):
        return BatchError(
            "unsupported_value", "Answers of a batch are not streamed.", number, "body.stream"
        )
    seen.add(line.custom_id)
    return Line(number - 1, line.custom_id, msgspec.json.encode(line.body))


async def numbered_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their 1-based numbers."""
    rest, number = b"", 0
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MOST_LINE_BYTES:
            raise InvalidBatch.because(
                "line_too_long", f"A line has more than {_MOST_LINE_BYTES} bytes."
            )
        for text in lines:
            number += 1
            if text.strip():
                yield number, text
    if rest.strip():
        yield number + 1, rest
