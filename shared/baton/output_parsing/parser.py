"""OutputParser: incremental parser of reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.output import Output
from baton.output_parsing.pieces import Piece
from baton.output_parsing.reasoning_format import ReasoningReader, Start
from baton.output_parsing.source import Reader, Source, Write
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tools import Tools


class OutputParser:
    """Parses one answer. Its state is a function of the text that was fed, however it was split.

    Feed the text as it arrives, then call `finish` once. Without a tool format, calls are content;
    without a reasoning format, thinking is. Never raises, whatever the text is.
    """

    def __init__(
        self,
        tool_format: ToolReader | None,
        reasoning_format: ReasoningReader | None,
        *,
        start: Start = "content",
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str = "auto",
        call_id_seed: str = "",
    ) -> None:
        """`start` is where the text begins. `tools` are those of the request in OpenAI's format;
        `tool_choice` is "none" if calls must not be parsed. The ids of calls are derived from the
        seed: use a different one for each answer."""
        if tool_format is not None and tool_format.own_reasoning is not None:
            reasoning_format = tool_format.own_reasoning if tool_choice == "none" else None
        self._output = Output()
        self._stages: list[_Stage] = []
        content: Write = self._output.content
        openers: tuple[str, ...] = ()
        if tool_format is not None and tool_choice != "none":
            openers = tool_format.openers
            self._add(self._calls, tool_format, Tools(tools), call_id_seed, start)
            content = self._stages[0].feed
        if reasoning_format is not None:
            self._add(self._thinking, reasoning_format, content, start, openers)
        self._feed = self._stages[0].feed if self._stages else content

    def _add(self, read: Callable[..., Reader[None]], *arguments: object) -> None:
        """Insert a stage before the others."""
        source = Source()
        self._stages.insert(0, _Stage(source, read(source, *arguments)))

    def _calls(
        self, source: Source, tool_format: ToolReader, tools: Tools, seed: str, start: Start
    ) -> Reader[None]:
        calls = Calls(source, self._output, tools, seed, tool_format.make_id)
        try:
            yield from tool_format.read(source, self._output, calls, start)
        except Malformed:
            # The error is already the last piece; an answer ends with it.
            return

    def _thinking(
        self,
        source: Source,
        reasoning_format: ReasoningReader,
        content: Write,
        start: Start,
        openers: tuple[str, ...],
    ) -> Reader[None]:
        yield from reasoning_format.read(source, self._output, content, start, openers)

    def feed(self, text: str) -> list[Piece]:
        """Add text. Returns the pieces that later text cannot change."""
        if text:
            self._feed(text)
        return self._output.take()

    def finish(self) -> list[Piece]:
        """End the text. Returns what was held back."""
        for stage in self._stages:
            stage.finish()
        return self._output.take()


class _Stage:
    """A reader and its input."""

    def __init__(self, source: Source, reader: Reader[None]) -> None:
        self._source = source
        self._reader = reader
        self._done = False

    def feed(self, text: str) -> None:
        """Run the reader until it needs more text."""
        if not self._done:
            self._source.append(text)
            self._step()

    def finish(self) -> None:
        """Run the reader to its end."""
        self._source.ended = True
        self._step()
        assert self._done, "a reader waits for text behind the end"

    def _step(self) -> None:
        self._done = self._done or bool(next(self._reader, True))
