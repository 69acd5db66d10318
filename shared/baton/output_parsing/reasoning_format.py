"""ReasoningFormat: the syntax of a model's thinking, and the parser that separates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from baton.output_parsing.output import Output
from baton.output_parsing.source import Reader, Source, Write, delimiters, gather

Start = Literal["thinking", "content", "unknown"]
"""Where the text begins. thinking: the prompt ends with the opener. content: it does not, so the
model opens its thinking itself, if at all. unknown: the prompt is not known; like thinking, unless
the text begins with a tool call."""
_NOTHING = delimiters()


class ReasoningReader(Protocol):
    """A reasoning format."""

    @property
    def name(self) -> str:
        """Name in `--reasoning-parser`."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Aliases."""

    def default_start(self, thinking: bool | None) -> Start:
        """Where the text begins if the prompt is not known.

        `thinking` is whether the request enables thinking; None for its default.
        """

    def start(self, prompt: str) -> Start:
        """Whether the text after a rendered prompt begins as thinking or as content."""

    def read(
        self, source: Source, output: Output, content: Write, start: Start, calls: tuple[str, ...]
    ) -> Reader[None]:
        """Split an answer. `content` receives the input of a tool parser; `calls` are its
        openers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Tags around the answer, which are removed."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    holds_calls: bool
    """Whether calls are recognised inside the thinking; otherwise they are text."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """One row of the table of formats."""

    name: str
    """Name in `--reasoning-parser`."""
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    opened_by_template: Literal["yes", "perhaps", "on request", "no"] = "yes"
    """Whether the prompts of the family end with the opener; `on request`: only if thinking is
    enabled, which is not the default."""
    answer: Answer | None = None
    in_content: bool = False
    """Whether the thinking remains in the content, including its tags."""

    def default_start(self, thinking: bool | None) -> Start:
        """As in `ReasoningReader`."""
        match self.opened_by_template:
            case "yes":
                return "content" if thinking is False else "thinking"
            case "perhaps":
                return "content" if thinking is False else "unknown"
            case "on request":
                return "thinking" if thinking else "content"
            case "no":
                return "content"

    def start(self, prompt: str) -> Start:
        """As in `ReasoningReader`."""
        return "thinking" if prompt.rstrip().endswith(self.openers) else "content"

    def read(
        self, source: Source, output: Output, content: Write, start: Start, calls: tuple[str, ...]
    ) -> Reader[None]:
        """As in `ReasoningReader`."""
        if self.in_content:
            yield from self._keep(source, output, content, start)
            return
        blank, _ = yield from gather(source.space)
        opened = yield from self._open(source)
        if not opened and start == "unknown" and (yield from _next_is(source, calls)):
            start = "content"
        if opened or start != "content":
            yield from source.until(delimiters(*self.closers), output.reasoning)
        elif not (yield from source.literal(delimiters(*self.closers))):
            yield from self._answer(source, output, content, blank)
            return
        yield from source.space()
        yield from self._answer(source, output, content, "")

    def _open(self, source: Source) -> Reader[bool]:
        """Read the opener, which the model may repeat."""
        openers, opened = delimiters(*self.openers), False
        while (yield from source.literal(openers)):
            yield from source.space()
            opened = True
        return opened

    def _keep(self, source: Source, output: Output, content: Write, start: Start) -> Reader[None]:
        if start != "content":
            output.content(self.openers[-1])
            closer = yield from source.until(delimiters(*self.closers), output.content)
            output.content(closer)
        yield from source.until(_NOTHING, content)

    def _answer(self, source: Source, output: Output, content: Write, blank: str) -> Reader[None]:
        tags = self.answer
        if tags is not None and (yield from source.literal(delimiters(*tags.openers))):
            write = content if tags.holds_calls else output.content
            yield from source.until(delimiters(*tags.closers), write)
            yield from source.space()
        elif blank:
            content(blank)
        yield from source.until(_NOTHING, content)


def _next_is(source: Source, literals: tuple[str, ...]) -> Reader[bool]:
    literal = yield from source.literal(delimiters(*literals))
    source.position -= len(literal)
    return bool(literal)
