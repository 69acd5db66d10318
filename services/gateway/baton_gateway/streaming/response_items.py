"""Items of a streamed response, and their events.

added -> (part added) -> delta* -> done -> (part done) -> item done
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from baton_gateway.generation.logprobs import ChatToken
from baton_gateway.schemas.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from baton_gateway.schemas.responses.output_items import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

I = TypeVar("I", bound=OutputItem)  # noqa: E741
Events = Iterator[Event]


class OpenItem(Protocol):
    """The item at the end of the output. Life cycle: `opening` once, `add` for each text in turn,
    `closing` once. Events refer to the item, so encode each before taking the next one."""

    @property
    def item(self) -> OutputItem:
        """The item in its current state."""

    def opening(self) -> Events:
        """Yield the events that begin it."""

    def add(self, text: str, logprobs: list[ChatToken]) -> Events:
        """Append a text, and yield its event."""

    def closing(self, status: ItemStatus) -> Events:
        """Yield the events that end it."""


class _Item(Generic[I]):
    """Common part of all items."""

    def __init__(self, item: I, index: int, number: Callable[[], int]) -> None:
        """`number`: returns the number of the next event."""
        self.item = item
        self._index, self._number = index, number

    def _added(self) -> ItemAdded:
        return ItemAdded(sequence_number=self._number(), output_index=self._index, item=self.item)

    def _done(self, status: ItemStatus) -> ItemDone:
        self.item.status = status
        return ItemDone(sequence_number=self._number(), output_index=self._index, item=self.item)

    def _place(self) -> dict[str, Any]:
        """Event fields that identify the item."""
        return {
            "sequence_number": self._number(),
            "item_id": self.item.id,
            "output_index": self._index,
        }


class OpenMessage(_Item[MessageItem]):
    """A message of one text."""

    def opening(self) -> Events:
        """See `OpenItem`."""
        yield self._added()
        self._text = OutputText("")
        yield PartAdded(**self._place(), part=self._text)
        self.item.content = [self._text]

    def add(self, text: str, logprobs: list[ChatToken]) -> Events:
        """See `OpenItem`."""
        self._text.text += text
        self.score(logprobs)
        yield TextDelta(**self._place(), delta=text, logprobs=logprobs)

    def score(self, logprobs: list[ChatToken]) -> None:
        """Append log-probabilities, also of tokens without text."""
        if logprobs:
            self._text.logprobs = self._text.logprobs + logprobs

    def closing(self, status: ItemStatus) -> Events:
        """See `OpenItem`."""
        text = self._text
        yield TextDone(**self._place(), text=text.text, logprobs=text.logprobs)
        yield PartDone(**self._place(), part=text)
        yield self._done(status)


class OpenReasoning(_Item[ReasoningItem]):
    """The model's thinking."""

    def __init__(
        self,
        item: ReasoningItem,
        index: int,
        number: Callable[[], int],
        encrypt: Callable[[str], str] | None = None,
    ) -> None:
        """`encrypt`: encrypts the complete text; None if that was not requested."""
        super().__init__(item, index, number)
        self._encrypt = encrypt

    def opening(self) -> Events:
        """See `OpenItem`."""
        yield self._added()
        self._text = ReasoningText("")
        yield PartAdded(**self._place(), part=self._text)
        self.item.content = [self._text]

    def add(self, text: str, logprobs: list[ChatToken]) -> Events:
        """See `OpenItem`."""
        self._text.text += text
        yield ReasoningDelta(**self._place(), delta=text)

    def closing(self, status: ItemStatus) -> Events:
        """See `OpenItem`."""
        if self._encrypt is not None:
            self.item.encrypted_content = self._encrypt(self._text.text)
        yield ReasoningDone(**self._place(), text=self._text.text)
        yield PartDone(**self._place(), part=self._text)
        yield self._done(status)


class OpenFunctionCall(_Item[FunctionCallItem]):
    """A call of a function."""

    def opening(self) -> Events:
        """See `OpenItem`."""
        yield self._added()

    def add(self, text: str, logprobs: list[ChatToken]) -> Events:
        """See `OpenItem`."""
        self.item.arguments += text
        yield ArgumentsDelta(**self._place(), delta=text)

    def closing(self, status: ItemStatus) -> Events:
        """See `OpenItem`. A complete call without arguments has an empty object."""
        if status == "completed" and not self.item.arguments:
            self.item.arguments = "{}"
        item = self.item
        yield ArgumentsDone(**self._place(), name=item.name, arguments=item.arguments)
        yield self._done(status)


class OpenCustomCall(_Item[CustomCallItem]):
    """A call of a custom tool: its input is known once the JSON object that contains it is
    complete."""

    _object = ""

    def opening(self) -> Events:
        """See `OpenItem`."""
        yield self._added()

    def add(self, text: str, logprobs: list[ChatToken]) -> Events:
        """See `OpenItem`."""
        self._object += text
        yield from ()

    def closing(self, status: ItemStatus) -> Events:
        """See `OpenItem`."""
        if status == "completed":
            self.item.input = _input(self._object)
            yield InputDelta(**self._place(), delta=self.item.input)
        yield InputDone(**self._place(), input=self.item.input)
        yield self._done(status)


class OpenInput(_Item[CustomCallItem]):
    """A call of a custom tool whose input is the complete answer."""

    def opening(self) -> Events:
        """See `OpenItem`."""
        yield self._added()

    def add(self, text: str, logprobs: list[ChatToken]) -> Events:
        """See `OpenItem`."""
        self.item.input += text
        yield InputDelta(**self._place(), delta=text)

    def closing(self, status: ItemStatus) -> Events:
        """See `OpenItem`."""
        yield InputDone(**self._place(), input=self.item.input)
        yield self._done(status)


def _input(arguments: str) -> str:
    """Return the input in the arguments of a call; all of them if they have another form."""
    parsed = msgspec.json.decode(arguments or "{}")
    text = parsed.get("input") if len(parsed) == 1 else None
    return text if isinstance(text, str) else arguments
