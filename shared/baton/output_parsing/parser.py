"""OutputParser: reads what a model writes into reasoning, content and tool calls, as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.output import Output
from baton.output_parsing.pieces import Piece
from baton.output_parsing.reasoning_format import ReasoningReader, Start
from baton.output_parsing.source import Reader, Source
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tools import Tools


class OutputParser:
    """Reads one answer. Its state is a function of the texts that were fed, however they were cut.

    Feed the text as it comes, then call `finish` once. Without a format of tool calls, calls are
    content; without one of reasoning, thinking is. Never raises, whatever the text is.
    """

    def __init__(
        self,
        tool_format: ToolReader | None,
        reasoning_format: ReasoningReader | None,
        *,
        start: Start = "content",
        tools: Sequence[Mapping[str, Any]] | None = None,
        call_id_seed: str = "",
    ) -> None:
        """`start` says where the text begins; `tools` are those of the request, in OpenAI's form.
        Ids of calls are a function of the seed: give each answer its own."""
        self._output = Output()
        self._stages: list[_Stage] = []
        content: Callable[[str], object] = self._output.content
        if tool_format is not None:
            self._stages.append(self._calls(tool_format, Tools(tools), call_id_seed))
            content = self._stages[0].feed
        if reasoning_format is not None and not (tool_format and tool_format.reads_reasoning):
            openers = tool_format.openers if tool_format else ()
            read = partial(_reasoning, reasoning_format, self._output, content, start, openers)
            self._stages.insert(0, _Stage(read))
        self._feed = self._stages[0].feed if self._stages else content

    def _calls(self, tool_format: ToolReader, tools: Tools, seed: str) -> _Stage:
        def read(source: Source) -> Reader[None]:
            calls = Calls(source, self._output, tools, seed, tool_format.make_id)
            try:
                yield from tool_format.read(source, self._output, calls)
            except Malformed:
                # The error is the last piece already; an answer ends with it.
                return

        return _Stage(read)

    def feed(self, text: str) -> list[Piece]:
        """Read more text. Returns what is certain by now."""
        if text:
            self._feed(text)
        return self._output.take()

    def finish(self) -> list[Piece]:
        """The text is at its end. Returns what was held back."""
        for stage in self._stages:
            stage.finish()
        return self._output.take()


def _reasoning(
    reasoning_format: ReasoningReader,
    output: Output,
    content: Callable[[str], object],
    start: Start,
    openers: tuple[str, ...],
    source: Source,
) -> Reader[None]:
    yield from reasoning_format.read(source, output, content, start, openers)


class _Stage:
    """A reader and the text before it."""

    def __init__(self, read: Callable[[Source], Reader[None]]) -> None:
        self._source = Source()
        self._reader = read(self._source)
        self._done = False

    def feed(self, text: str) -> None:
        """Run the reader until it needs more text than this."""
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
