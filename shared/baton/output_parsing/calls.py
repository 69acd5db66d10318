"""The tool calls of one answer while they are read.

Until a call has started, its text may turn out to be content: the source keeps it for a rewind.
After its start the client has received the call, and a syntax error is a parse error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from baton.output_parsing.output import Output
from baton.output_parsing.pieces import CallEnd, CallStart, ParseError
from baton.output_parsing.source import Reader, Source
from baton.output_parsing.tools import Tools


class Malformed(Exception):
    """The text does not match the format; the message says why.

    Raised as soon as no continuation could match, or at the end of the text, so the result does not
    depend on where the text was split.
    """


MakeId = Callable[[str, int], str]
"""(seed, index of the call) -> id, so that a replay produces the same ids."""


def openai_id(seed: str, index: int) -> str:
    """An id in OpenAI's format."""
    return "call_" + _digest(seed, index)[:24]


def mistral_id(seed: str, index: int) -> str:
    """Nine letters and digits, as required by Mistral's templates."""
    return _digest(seed, index)[:9]


def _digest(seed: str, index: int) -> str:
    text = f"{index} {seed}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class Calls:
    """Starts, continues and ends the calls of one answer, one at a time."""

    def __init__(
        self,
        source: Source,
        output: Output,
        tools: Tools,
        seed: str = "",
        make_id: MakeId = openai_id,
    ) -> None:
        self.source = source
        self.tools = tools
        self.count = 0
        """Number of complete calls."""
        self.open = False
        self._output = output
        self._seed = seed
        self._make_id = make_id

    def start(self, name: str, call_id: str | None = None) -> None:
        """Start the next call. It cannot be rewound any more."""
        self.source.release()
        self.open = True
        call_id = call_id or self._make_id(self._seed, self.count)
        self._output.put(CallStart(self.count, call_id, name))

    def write(self, text: str) -> None:
        """Add to the arguments of the open call."""
        self._output.arguments(self.count, text)

    def end(self) -> None:
        """End the open call as complete."""
        self._output.put(CallEnd(self.count))
        self.count += 1
        self.open = False
        self.source.mark()

    def add(self, name: str, arguments: str, call_id: str | None = None) -> None:
        """Add a call that was read completely."""
        self.start(name, call_id)
        self.write(arguments)
        self.end()

    def attempt(self, body: Reader[None], back: int) -> Reader[bool]:
        """Read calls whose opener is the last `back` characters. Returns whether there was one.

        Text that is not a call is unread, from its opener or from the end of the last call on.
        Raises `Malformed` inside a call that has started, after a piece with the error.
        """
        before = self.count
        self.source.mark(back)
        try:
            yield from body
            self.source.release()
        except Malformed as fault:
            if self.open:
                self._fail(fault)
                raise
            self.source.rewind()
        return self.count > before

    def _fail(self, fault: Malformed) -> None:
        if self.source.ended:
            message = f"Tool call {self.count}: the text ends inside the call."
            self._output.put(ParseError(self.count, "incomplete_tool_call", message))
        else:
            message = f"Tool call {self.count}: {fault}."
            self._output.put(ParseError(self.count, "invalid_tool_call", message))
