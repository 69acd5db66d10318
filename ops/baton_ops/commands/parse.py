"""`baton parse`: parses a model's output without the model.

baton parse --tool-parser hermes < output.txt     one JSON object, as in a server's answer
baton parse --tool-parser hermes --stream < ...   one line per delta
baton parse --cases FILE.jsonl                    many texts, complete and split in several ways
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from baton.errors import BatonError, InvalidRequest, SettingsError
from baton.output_parsing import Message, OutputParser, ParseError, Piece, Start, delta
from baton.output_parsing.selection import NONE, select
from baton.settings import Settings

_TOKENS = re.compile(r"\s?\w{1,6}|\s+|[^\w\s]{1,2}")
"""Splits a text approximately like a tokenizer."""

Object = dict[str, Any]


class Parse(Settings, prefix="parse"):
    """Parse a model's output from standard input into reasoning, content and tool calls."""

    tool_parser: str = ""
    """Format of the tool calls, as in --tool-call-parser of `baton serve`."""
    reasoning_parser: str = ""
    """Format of the thinking, as in --reasoning-parser of `baton serve`."""
    tools: Path | None = None
    """JSON file with a list of tools in OpenAI's format."""
    tool_choice: str = "auto"
    """auto, required, none or the name of a function."""
    thinking: Literal["on", "off"] | None = None
    """Whether the prompt enables thinking; the default is that of the model family."""
    stream: bool = False
    """Print one line per delta."""
    chunk: str = "tokens"
    """How much is fed at a time with --stream: a number of characters, or tokens."""
    cases: Path | None = None
    """JSON lines of texts and how to split each; standard input is not read then."""

    def lines(self) -> Iterator[Object]:
        """The result. Raises `SettingsError` for an unknown name and an unreadable file."""
        return read_cases(self.cases) if self.cases else self._read(_stdin())

    def _read(self, text: str) -> Iterator[Object]:
        case = {
            "tool_parser": self.tool_parser,
            "reasoning_parser": self.reasoning_parser,
            "tools": _tools(self.tools) if self.tools else None,
            "tool_choice": self.tool_choice,
            "thinking": None if self.thinking is None else self.thinking == "on",
        }
        if not self.stream:
            yield _complete(case, text)
            return
        message, deltas = _streamed(case, _chunks(text, self.chunk))
        yield from deltas
        if message.error is not None:
            yield {"error": _error(message.error)}
        yield {"finish_reason": message.finish_reason}


def _tools(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"Cannot read --tools {path}: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsError(f"--tools {path} is no JSON: {error}.") from error


def _stdin() -> str:
    """Standard input, with unchanged newlines."""
    return sys.stdin.buffer.read().decode(errors="replace")


def read_cases(path: Path) -> Iterator[Object]:
    """The results of a file of cases, one per case and split."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield from _results(line)
    except OSError as error:
        raise SettingsError(f"Cannot read --cases {path}: {error.strerror}.") from error


def _results(line: str) -> Iterator[Object]:
    """A case that fails does not stop the others."""
    try:
        case = json.loads(line)
        chunks = case.get("chunks") or [0]
    except (ValueError, AttributeError) as error:
        yield {"id": None, "chunk": None, "error": _failure(error)}
        return
    for chunk in chunks:
        head = {"id": case.get("id"), "chunk": chunk}
        try:
            yield head | _result(case, chunk)
        except Exception as error:
            yield head | {"error": _failure(error)}


def _failure(error: Exception) -> Object:
    return {"type": "invalid_case", "message": str(error) or type(error).__name__}


def _result(case: Object, chunk: int | list[int]) -> Object:
    text = case["text"]
    if chunk == 0:
        return _complete(case, text)
    cuts = list(chunk) if isinstance(chunk, list) else range(chunk, len(text), chunk)
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    message, deltas = _streamed(case, parts)
    return {"deltas": deltas, "finish_reason": message.finish_reason} | _errors(message)


def _parser(case: Object) -> OutputParser:
    formats = select(case.get("tool_parser") or NONE, case.get("reasoning_parser") or NONE)
    reasoning, start = formats.reasoning_format, _start(case, formats.reasoning_format)
    return OutputParser(
        formats.tool_format,
        reasoning,
        start=start,
        tools=case.get("tools"),
        tool_choice=case.get("tool_choice") or "auto",
        call_id_seed=str(case.get("id")),
    )


def _start(case: Object, reasoning: Any) -> Start:
    return reasoning.default_start(case.get("thinking")) if reasoning is not None else "content"


def _complete(case: Object, text: str) -> Object:
    message = _read(_parser(case), [text])[0]
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    return {
        "reasoning": message.reasoning,
        "content": message.content,
        "tool_calls": calls,
        "finish_reason": message.finish_reason,
    } | _errors(message)


def _streamed(case: Object, parts: Sequence[str]) -> tuple[Message, list[Object]]:
    message, pieces = _read(_parser(case), parts)
    return message, [chunk for piece in pieces if (chunk := delta(piece)) is not None]


def _read(parser: OutputParser, parts: Sequence[str]) -> tuple[Message, list[Piece]]:
    message = Message()
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.finish()
    message.add(pieces)
    return message, pieces


def _errors(message: Message) -> Object:
    return {"error": _error(message.error)} if message.error is not None else {}


def _error(error: ParseError) -> Object:
    return {"type": error.type, "message": error.message, "index": error.index}


def _chunks(text: str, size: str) -> list[str]:
    if size == "tokens":
        return _TOKENS.findall(text)
    if not size.isdigit() or int(size) < 1:
        raise InvalidRequest(f"--chunk is a number of characters or 'tokens', not '{size}'.")
    return [text[i : i + int(size)] for i in range(0, len(text), int(size))]


def main() -> None:
    """Print the result; exits with 2 for wrong flags and unreadable files."""
    try:
        for line in Parse.load(sys.argv[1:]).lines():
            print(json.dumps(line))
    except BatonError as error:
        print(f"baton parse: {error.message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
