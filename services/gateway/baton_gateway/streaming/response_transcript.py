"""Events of a streamed response, and the resulting response.

created in_progress (item_added ... item_done)* (completed | incomplete | failed)

Invariant: items open and close in order, at most one is open, and events are numbered from 0.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import msgspec
from msgspec import UNSET

from baton.errors import BatonError
from baton.output_parsing import Arguments, CallEnd, CallStart, Content, Piece, Reasoning
from baton_gateway.generation.logprobs import ChatToken, Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.events import (
    Completed,
    Created,
    Event,
    Failed,
    Incomplete,
    InProgress,
    ResponseEvent,
)
from baton_gateway.schemas.responses.namespaces import ToolNames
from baton_gateway.schemas.responses.output_items import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    ReasoningItem,
)
from baton_gateway.schemas.responses.response import (
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseUsage,
)
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_items import (
    OpenCustomCall,
    OpenFunctionCall,
    OpenInput,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)

_ENDINGS: dict[str, type[ResponseEvent]] = {"completed": Completed, "incomplete": Incomplete}
_ERROR_CODES = {429: "rate_limit_exceeded"}
"""Status -> code; other statuses are errors of the prompt or the server in general."""


class ResponseTranscript:
    """Converts the deltas of the one choice to events, one item after the other."""

    def __init__(
        self,
        body: ResponseChat,
        head: Head,
        vocabulary: Vocabulary,
        encrypt: Callable[[str], str] | None = None,
    ) -> None:
        """
        Args:
            encrypt: encrypts thinking; None if that was not requested.
        """
        self.response = Response(
            id=head.id,
            created_at=head.created,
            model=head.model,
            status="in_progress",
            output=[],
            **(body.response | {"temperature": body.temperature, "top_p": body.top_p}),
        )
        """The response so far."""
        self._vocabulary, self._top = vocabulary, body.top_logprobs or 0
        self._input_of = body.input_of
        self._names = ToolNames(body.response["tools"])
        self._numbers, self._encrypt = count(), encrypt
        self._prompt = self._cached = self._output = self._reasoning = 0
        self._reason: str | None = None
        self._open: OpenItem | None = None
        self._logprobs: list[ChatToken] = []
        """Log-probabilities of tokens whose text has not arrived yet."""

    def opening(self, started: Started) -> Iterator[bytes]:
        """Yield the beginning of the response."""
        self._prompt = len(started.prompts[0])
        for event in (Created, InProgress):
            yield self._encoded(event)

    def add(self, delta: OutputDelta) -> list[bytes]:
        """Return the events of a delta."""
        return [msgspec.json.encode(event) for event in self.events(delta)]

    def closing(self) -> Iterator[bytes]:
        """Yield the end of the response."""
        for event in self.ending():
            yield msgspec.json.encode(event)

    def ended_as(self, response: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of a response that was stored as `response`."""
        if response["status"] in _ENDINGS:
            for event in self._items_end():
                yield msgspec.json.encode(event)
        self.response = msgspec.convert(response, Response)
        yield self._encoded(_ENDINGS.get(self.response.status, Failed))

    def cancel(self) -> None:
        """End the response as cancelled."""
        self.response.status = "cancelled"
        self._cut_off()

    def failed(self, error: BatonError) -> bytes:
        """Return the last event of a response that failed with an error."""
        general = "invalid_prompt" if error.status < 500 else "server_error"
        code = _ERROR_CODES.get(error.status, general)
        message = error.message.encode("utf-8", "backslashreplace").decode()
        self.response.status, self.response.error = "failed", ResponseError(code, message)
        self._cut_off()
        return self._encoded(Failed)

    def _cut_off(self) -> None:
        if self._open is not None:
            self._open.item.status = "incomplete"

    def events(self, delta: OutputDelta) -> Iterator[Event]:
        """Yield the events of a delta; encode each before taking the next one."""
        self._cached = delta.cached
        self._output += len(delta.tokens)
        self._reasoning += delta.reasoning_tokens
        self._reason = delta.reason
        if delta.logprobs:
            answer_logprobs = delta.logprobs[delta.reasoning_tokens :]
            self._logprobs += self._vocabulary.chat(answer_logprobs, self._top).content
        for piece in delta.pieces:
            yield from self._piece(piece)

    def ending(self) -> Iterator[Event]:
        """Yield the events after the last delta."""
        yield from self._items_end()
        cut, response = self._reason == "length", self.response
        response.status = "incomplete" if cut else "completed"
        response.incomplete_details = IncompleteDetails("max_output_tokens") if cut else None
        response.completed_at = None if cut else int(time.time())
        response.usage = ResponseUsage.of(self._prompt, self._cached, self._output, self._reasoning)
        yield _ENDINGS[response.status](sequence_number=next(self._numbers), response=response)

    def _items_end(self) -> Iterator[Event]:
        if not self.response.output:
            yield from self._begin(self._text_item())
        if isinstance(self._open, OpenMessage):
            self._open.score(self._take_logprobs())
        yield from self._close("incomplete" if self._reason == "length" else "completed")

    def _piece(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Content(text):
                if not isinstance(self._open, OpenMessage | OpenInput):
                    yield from self._begin(self._text_item())
                yield from self._add(text, self._take_logprobs())
            case Reasoning(text):
                if not isinstance(self._open, OpenReasoning):
                    yield from self._begin(self._reasoning_item())
                yield from self._add(text)
            case CallStart(_, call_id, name):
                yield from self._begin(self._call_item(call_id, name))
            case Arguments(_, text):
                yield from self._add(text)
            case CallEnd():
                yield from self._close("completed")

    def _text_item(self) -> OpenItem:
        """Return a new item for text: a message, or the input of a tool."""
        if self._input_of is not None:
            call_id = f"call_{self.response.id.partition('_')[2]}"
            tool = self._names.address(self._input_of)
            call = CustomCallItem(self._id("ctc"), call_id, tool.name, "in_progress")
            call.namespace = tool.namespace or UNSET
            return OpenInput(call, self._index, self._number)
        item = MessageItem(self._id("msg"), "in_progress")
        return OpenMessage(item, self._index, self._number)

    def _reasoning_item(self) -> OpenItem:
        item = ReasoningItem(self._id("rs"), "in_progress")
        return OpenReasoning(item, self._index, self._number, self._encrypt)

    def _call_item(self, call_id: str, name: str) -> OpenItem:
        place: Any = self._index, self._number
        tool = self._names.address(name)
        if self._names.is_custom(name):
            custom = CustomCallItem(self._id("ctc"), call_id, tool.name, "in_progress")
            custom.namespace = tool.namespace or UNSET
            return OpenCustomCall(custom, *place)
        function = FunctionCallItem(self._id("fc"), call_id, tool.name, "in_progress")
        function.namespace = tool.namespace or UNSET
        return OpenFunctionCall(function, *place)

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        """Close the open item and open this one."""
        yield from self._close("completed")
        self._open = item
        yield from item.opening()
        self.response.output.append(item.item)

    def _add(self, text: str, logprobs: Iterable[ChatToken] = ()) -> Iterator[Event]:
        assert self._open is not None
        yield from self._open.add(text, list(logprobs))

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        """Close the open item, if there is one."""
        item, self._open = self._open, None
        if item is not None:
            yield from item.closing(status)

    def _take_logprobs(self) -> list[ChatToken]:
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    @property
    def _index(self) -> int:
        """Index of the next item."""
        return len(self.response.output)

    def _id(self, prefix: str) -> str:
        """Return the id of the next item, which a repetition of the stream reproduces."""
        return f"{prefix}_{self.response.id.partition('_')[2]}{self._index:04x}"

    def _number(self) -> int:
        return next(self._numbers)

    def _encoded(self, event: type[ResponseEvent]) -> bytes:
        return msgspec.json.encode(
            event(sequence_number=next(self._numbers), response=self.response)
        )
