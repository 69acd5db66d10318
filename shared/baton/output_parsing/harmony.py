"""Harmony, the format of gpt-oss: messages in channels, some of which are calls.

    <|channel|>analysis<|message|>TEXT<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGS...
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

The prompt ends with `<|start|>assistant`, so an output begins with a channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton.output_parsing.bodies.header import raw_header
from baton.output_parsing.bodies.json_calls import copy_arguments
from baton.output_parsing.calls import Calls, MakeId, Malformed, openai_id
from baton.output_parsing.output import Output
from baton.output_parsing.reasoning_format import ReasoningReader, Start
from baton.output_parsing.source import Reader, Source, Write, delimiters, gather

_BEGIN = ("<|start|>", "<|channel|>")
_CLOSE = ("<|end|>", "<|return|>", "<|call|>")
_MESSAGE = delimiters("<|message|>")
_HEADER = re.compile(r"[^{}\n]{0,256}")
_RECIPIENT = re.compile(r"\bto=(?P<function>functions\.)?(?P<name>[\w./:-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_ENDS = delimiters(*_BEGIN, *_CLOSE)


class _Answer:
    """Parses the messages of one answer."""

    def __init__(self, source: Source, output: Output, content: Write, calls: Calls | None) -> None:
        self._source = source
        self._output = output
        self._content = content
        self._calls = calls
        self._thought = False
        self._joint = ""
        """Inserted between two reasoning messages."""

    def read(self, start: Start) -> Reader[None]:
        """Read all messages. Text outside of them has no channel and counts as content."""
        source, begin = self._source, delimiters(*_BEGIN)
        blank, _ = yield from gather(source.space)
        if start == "thinking":
            yield from self._pass(self._think)
        elif opener := (yield from source.literal(begin)):
            source.position -= len(opener)
        else:
            self._content(blank)
        while opener := (yield from source.until(begin, self._content)):
            if (yield from self._message(opener)):
                yield from source.space()
            else:
                source.position += len(opener)
                self._content(opener)

    def _message(self, opener: str) -> Reader[bool]:
        """Read a message after the beginning of its header, or rewind to it."""
        self._source.mark(len(opener))
        try:
            text, delimiter = yield from raw_header(self._source, _MESSAGE, _HEADER)
        except Malformed:
            self._source.rewind()
            return False
        self._source.release()
        return (yield from self._body(opener + text, len(opener + text + delimiter)))

    def _body(self, head: str, size: int) -> Reader[bool]:
        channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
        if self._calls is not None and recipient is not None:
            name = recipient["name"]
            if recipient["function"] or name in self._calls.tools:
                return (yield from self._call(self._calls, name, size))
        thinks = channel is not None and channel[1] == "analysis"
        yield from self._pass(self._think if thinks else self._content)
        return True

    def _call(self, calls: Calls, name: str, size: int) -> Reader[bool]:
        arguments = copy_arguments(self._source, calls, name, None, _CLOSE)
        is_call = yield from calls.attempt(arguments, size)
        if is_call:
            yield from self._pass(len)
        return is_call

    def _pass(self, write: Write) -> Reader[None]:
        """Pass on the text of a message up to its end or the next message."""
        end = yield from self._source.until(_ENDS, write)
        if end in _BEGIN:
            self._source.position -= len(end)
        self._joint = "\n" if self._thought else ""

    def _think(self, text: str) -> None:
        self._output.reasoning(self._joint + text)
        self._joint = ""
        self._thought = True


@dataclass(frozen=True, slots=True)
class HarmonyReasoning:
    """Harmony as a reasoning format; the text of a call is content."""

    name: str = "gpt_oss"
    aliases: tuple[str, ...] = ("gpt-oss", "gptoss", "openai_gptoss")

    def default_start(self, thinking: bool | None) -> Start:
        """As in `ReasoningReader`: a prompt ends before the first channel."""
        return "content"

    def start(self, prompt: str) -> Start:
        """As in `ReasoningReader`."""
        return "thinking" if prompt.endswith("<|channel|>analysis<|message|>") else "content"

    def read(
        self, source: Source, output: Output, content: Write, start: Start, calls: tuple[str, ...]
    ) -> Reader[None]:
        """As in `ReasoningReader`."""
        yield from _Answer(source, output, content, None).read(start)


@dataclass(frozen=True, slots=True)
class HarmonyTools:
    """Harmony as a tool format, which includes reasoning."""

    name: str = "openai"
    aliases: tuple[str, ...] = ()
    openers: tuple[str, ...] = _BEGIN
    make_id: MakeId = openai_id
    own_reasoning: ReasoningReader | None = HarmonyReasoning()

    def read(self, source: Source, output: Output, calls: Calls, start: Start) -> Reader[None]:
        """As in `ToolReader`."""
        yield from _Answer(source, output, output.content, calls).read(start)
