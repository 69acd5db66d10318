"""Incremental decode states of all gateways."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from baton.errors import WireError
from baton.protocol import Decode, DecodedText, DecodeOpen
from baton.protocol.token_columns import pack, unpack
from baton_tokenizer.detokenize import Alphabet, DetokenizeStream
from baton_tokenizer.stops import Stops


class DecodedPart(NamedTuple):
    """Text added by some tokens of a sequence."""

    text: str
    """Final text."""
    ends: tuple[int, ...]
    """Per token: total number of final characters after it."""


class DecodeState:
    """Decode state of one sequence."""

    __slots__ = ("_stops", "_stream", "consumed", "num_emitted")

    def __init__(self, alphabet: Alphabet, open: DecodeOpen) -> None:
        """Start after `open.log`, whose text is not returned again."""
        tail = unpack(open.prompt_tail)
        self._stream = DetokenizeStream(alphabet, skip_special=open.skip_special, prompt_tail=tail)
        self._stops = Stops(open.stops, open.include_stop) if open.stops else None
        self.consumed = 0
        """Number of tokens consumed."""
        self.num_emitted = 0
        """Number of characters emitted."""
        self.push(unpack(open.log), last=False)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the sequence."""
        return self._stops.matched if self._stops else None

    def push(self, tokens: Sequence[int], *, last: bool) -> DecodedPart:
        """Decode tokens; after the `last` ones, also flush held-back text."""
        if len(tokens) == 1 and not last and self._stops is None:
            return self._push_one(tokens[0])
        texts: list[str] = []
        ends: list[int] = []
        for token in tokens:
            if self.stopped:
                break
            text = self._stream.push(token)
            self.consumed += 1
            if text:
                self._give(text, texts)
            ends.append(self.num_emitted)
        if last and not self.stopped:
            self._finish(texts)
            ends[-1:] = [self.num_emitted] * len(ends[-1:])
        return DecodedPart("".join(texts), tuple(ends))

    def _push_one(self, token: int) -> DecodedPart:
        """Fast path of `push` for one token of a sequence without stop strings."""
        text = self._stream.push(token)
        self.consumed += 1
        self.num_emitted += len(text)
        return DecodedPart(text, (self.num_emitted,))

    def _give(self, text: str, texts: list[str]) -> None:
        if self._stops is not None:
            text = self._stops.push(text)
        self.num_emitted += len(text)
        texts.append(text)

    def _finish(self, texts: list[str]) -> None:
        self._give(self._stream.flush(), texts)
        rest = "" if self._stops is None else self._stops.flush()
        self.num_emitted += len(rest)
        texts.append(rest)


class _Row(NamedTuple):
    """One row of a Decode."""

    handle: int
    first: int
    tokens: Sequence[int]
    last: bool


def _rows(message: Decode) -> Iterator[_Row]:
    """Split the columns into rows. Raises `WireError` if they are inconsistent."""
    try:
        handles, first = unpack(message.handles, "I"), unpack(message.first, "I")
        counts, last = unpack(message.counts, "B"), unpack(message.last, "B")
        tokens = unpack(message.tokens)
    except ValueError as error:
        raise WireError(f"a column of Decode is cut off: {error}") from error
    if not len(handles) == len(first) == len(counts) == len(last) or sum(counts) != len(tokens):
        raise WireError("the columns of Decode differ in length")
    at = 0
    for handle, start, count, end in zip(handles, first, counts, last, strict=True):
        yield _Row(handle, start, tokens[at : at + count], bool(end))
        at += count


class DecodeStates:
    """Decode states by gateway and handle, bounded with LRU eviction.

    Eviction loses no data: the next row is answered with `unknown`, and the gateway reopens the
    sequence with its log.
    """

    def __init__(self, alphabet: Alphabet, limit: int) -> None:
        self._alphabet = alphabet
        self._limit = limit
        self._states: OrderedDict[tuple[bytes, int], DecodeState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def decode(self, peer: bytes, message: Decode) -> DecodedText:
        """Apply a message: open, decode and close. Raises `WireError` for invalid columns."""
        rows = list(_rows(message))
        for opening in message.open:
            self._open(peer, opening)
        handles: list[int] = []
        following: list[int] = []
        spoken: list[DecodedPart] = []
        stopped: dict[int, str] = {}
        unknown: list[int] = []
        for row in rows:
            state = self._find(peer, row)
            if state is None:
                unknown.append(row.handle)
                continue
            handles.append(row.handle)
            spoken.append(state.push(row.tokens[state.consumed - row.first :], last=row.last))
            following.append(state.consumed)
            if state.stopped is not None:
                stopped[row.handle] = state.stopped
            if row.last or state.stopped is not None:
                del self._states[peer, row.handle]
        for handle in unpack(message.close, "I"):
            self._states.pop((peer, handle), None)
        return DecodedText(
            handles=pack(handles, "I"),
            next=pack(following, "I"),
            texts=tuple(s.text for s in spoken),
            stopped=stopped,
            unknown=pack(unknown, "I"),
            ends=tuple(s.ends for s in spoken),
        )

    def drop(self, peer: bytes) -> None:
        """Drop all states of a gateway that is gone."""
        for key in [key for key in self._states if key[0] == peer]:
            del self._states[key]

    def _open(self, peer: bytes, opening: DecodeOpen) -> None:
        self._states[peer, opening.handle] = DecodeState(self._alphabet, opening)
        self._states.move_to_end((peer, opening.handle))
        if len(self._states) > self._limit:
            self._states.popitem(last=False)

    def _find(self, peer: bytes, row: _Row) -> DecodeState | None:
        """State of a row; None if it was dropped or tokens before the row are missing."""
        key = (peer, row.handle)
        state = self._states.get(key)
        if state is None:
            return None
        if row.first > state.consumed:
            del self._states[key]
            return None
        self._states.move_to_end(key)
        return state
