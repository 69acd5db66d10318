"""ToolFormat: the syntax of a model's calls, and the parser of an answer that may contain some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton.output_parsing.calls import Calls, MakeId, openai_id
from baton.output_parsing.output import Output
from baton.output_parsing.reasoning_format import ReasoningReader, Start
from baton.output_parsing.source import Reader, Source, delimiters, gather

_STOP_TOKENS = delimiters(
    *("<|im_end|>", "</s>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end_of_text|>"),
    *("<|endoftext|>", "<｜end▁of▁sentence｜>", "<|observation|>", "<|user|>", "[e~[", "<eos>"),
    *(
        "<end_of_turn>",
        "<start_function_response>",
        "<|end|>",
        "<|message_sep|>",
        "<|endofturn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<turn|>",
    ),
)
"""Stop tokens in the text: after a call they are not content."""


class Body(Protocol):
    """Reads the text after an opener, which is "" at the beginning of the text."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read calls and the closer after them. Raises `Malformed` if there is none."""


class ToolReader(Protocol):
    """A tool format."""

    @property
    def name(self) -> str:
        """Name in `--tool-call-parser`."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Aliases."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Each one begins a block of calls anywhere in the content."""

    @property
    def make_id(self) -> MakeId:
        """Generator of ids for formats without ids."""

    @property
    def own_reasoning(self) -> ReasoningReader | None:
        """The reasoning format that this one includes; None if any may be combined."""

    def read(self, source: Source, output: Output, calls: Calls, start: Start) -> Reader[None]:
        """Parse an answer: content up to an opener, calls, and so on. `start` is for formats that
        include reasoning.

        Raises `Malformed` in a call that has started, after the output contains the error.
        """


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One row of the table of formats."""

    name: str
    """Name in `--tool-call-parser`."""
    openers: tuple[str, ...]
    """Each one begins a block of calls anywhere in the content."""
    body: Body
    aliases: tuple[str, ...] = ()
    naked: str = ""
    """Characters with which a call may begin the text without an opener."""
    swallowed: tuple[str, ...] = ()
    """Delimiters around the answer that are removed."""
    make_id: MakeId = openai_id
    own_reasoning: ReasoningReader | None = None

    def read(self, source: Source, output: Output, calls: Calls, start: Start) -> Reader[None]:
        """As in `ToolReader`."""
        blank, char = yield from gather(source.space)

        def write(text: str) -> None:
            nonlocal blank
            output.content(blank + text)
            blank = ""

        if char and char in self.naked and (yield from self._attempt(source, calls, "")):
            blank = ""
        openers = delimiters(*self.openers, *self.swallowed)
        while opener := (yield from source.until(openers, write)):
            if opener in self.swallowed or (yield from self._attempt(source, calls, opener)):
                blank = ""
            else:
                source.position += len(opener)
                write(opener)
        write("")

    def _attempt(self, source: Source, calls: Calls, opener: str) -> Reader[bool]:
        is_call = yield from calls.attempt(self.body.read(source, calls, opener), len(opener))
        if is_call:
            yield from source.space()
            while (yield from source.literal(_STOP_TOKENS)):
                yield from source.space()
        return is_call
