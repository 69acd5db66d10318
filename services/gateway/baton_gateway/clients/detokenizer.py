"""Detokenisation of token logs: one columnar Decode message per step and tokenizer.

A decode state is a pure function of its opening and the tokens, and the log is kept here. When a
tokenizer is lost, restarts or drops a sequence, the state is reopened from the log on any
tokenizer, and the text continues at the next character.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping

from baton.protocol import Decode, DecodedText, DecodeOpen
from baton.protocol.token_columns import pack, unpack
from baton_gateway.clients.connection import Connection
from baton_gateway.generation.sequence import Sequence
from baton_gateway.http.write_batch import WriteBatch

_ROW = 255
"""Most tokens per row, since counts are uint8."""
_ROWS = 64
"""Most rows per message, so that writing the text overlaps with decoding the next message."""


class _Batch:
    """A Decode message for one tokenizer, under construction."""

    def __init__(self) -> None:
        self.handles = array("I")
        self.first = array("I")
        self.counts = array("B")
        self.tokens = array("i")
        self.last = array("B")
        self.open: list[DecodeOpen] = []
        self.sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence, visible: int) -> bool:
        """Add the unsent visible tokens, up to the row limit. True when more are left."""
        if not sequence.opened:
            self.open.append(sequence.opening())
        sent = sequence.sent
        upto = max(sent, min(visible, sent + _ROW))
        more = upto < visible
        self.handles.append(sequence.handle)
        self.first.append(sent)
        self.counts.append(upto - sent)
        self.tokens += sequence.log[sent:upto]
        sequence.opened, sequence.end_sent = True, sequence.reason is not None and not more
        self.last.append(sequence.end_sent)
        sequence.sent = upto
        sequence.awaited += 1
        self.sequences.append(sequence)
        return more

    def message(self) -> Decode:
        """Return the completed message."""
        return Decode(
            handles=pack(self.handles, "I"),
            first=pack(self.first, "I"),
            counts=pack(self.counts, "B"),
            tokens=pack(self.tokens),
            last=pack(self.last, "B"),
            open=tuple(self.open),
        )


class DetokenizerClient:
    """Sends logs to tokenizers and puts the returned text on the streams.

    `live` maps handles to the engine's sequences; `pick` chooses a tokenizer of a group; `abort`
    stops sequences at the scheduler after a stop string; `burst` coalesces the socket writes of one
    message.
    """

    def __init__(
        self,
        live: Mapping[int, Sequence],
        pick: Callable[[str], Connection | None],
        abort: Callable[[Iterable[Sequence]], Awaitable[None]],
        burst: WriteBatch,
    ) -> None:
        self._live, self._pick, self._abort, self._burst = live, pick, abort, burst

    async def add(self, sequences: Iterable[Sequence]) -> None:
        """Send unsent tokens and end markers to the tokenizers."""
        waiting = [s for s in sequences if not (s.ended or s.mute)]
        while waiting:
            batches: dict[Connection, _Batch] = {}
            left = []
            for sequence in waiting:
                decoder = sequence.decoder = sequence.decoder or self._pick(sequence.tokenizer)
                visible = sequence.visible
                if decoder is None or not _due(sequence, visible):
                    continue
                if decoder not in batches:
                    batches[decoder] = _Batch()
                if batches[decoder].add(sequence, visible):
                    left.append(sequence)
                if len(batches[decoder]) == _ROWS:
                    await _post(decoder, batches.pop(decoder))
            for decoder, batch in batches.items():
                await _post(decoder, batch)
            waiting = left

    async def receive(self, text: DecodedText, source: Connection) -> None:
        """Put the text of one reply on the streams; reopen states that the tokenizer has
        dropped."""
        unknown = set(unpack(text.unknown, "I"))
        forgotten = [s for s in map(self._live.get, unknown) if s and _answers(s, source)]
        for sequence in forgotten:
            sequence.reopen(source, stale=sequence.awaited)
        with self._burst:
            stopped = self._put(text, source, unknown)
        await self.add(forgotten)
        if stopped:
            await self._abort(stopped)

    def _put(self, text: DecodedText, source: Connection, unknown: set[int]) -> list[Sequence]:
        """Returns the sequences that a stop string ended while the scheduler still ran them."""
        stopped = []
        rows = zip(unpack(text.handles, "I"), unpack(text.next, "I"), text.texts, strict=True)
        for row, (handle, upto, piece) in enumerate(rows):
            sequence = self._live.get(handle)
            if sequence is None or handle in unknown or not _answers(sequence, source):
                continue
            stop = text.stopped.get(handle)
            sequence.deliver(upto, piece, text.ends[row] if text.ends else (), stop)
            if stop is not None and sequence.reason is None:
                stopped.append(sequence)
        return stopped

    async def lost(self, connection: Connection) -> None:
        """Move the sequences of a lost tokenizer to another one, if available."""
        for sequence in self._live.values():
            if sequence.decoder is connection:
                sequence.reopen(None)
        await self.place()

    async def place(self) -> None:
        """Assign a tokenizer to the sequences without one."""
        await self.add([s for s in self._live.values() if s.decoder is None])

    async def close(self, sequences: Iterable[Sequence]) -> None:
        """Close the decode states of released sequences."""
        handles: dict[Connection, list[int]] = {}
        for sequence in sequences:
            if sequence.decoder is not None and not sequence.ended:
                handles.setdefault(sequence.decoder, []).append(sequence.handle)
        for connection, column in handles.items():
            await connection.post(Decode(b"", b"", b"", b"", b"", close=pack(column, "I")))


async def _post(decoder: Connection, batch: _Batch) -> None:
    if not await decoder.post(batch.message()):
        for sequence in batch.sequences:
            sequence.reopen(None)


def _due(sequence: Sequence, visible: int) -> bool:
    """Return whether visible tokens or the end marker are unsent."""
    return sequence.sent < visible or (sequence.reason is not None and not sequence.end_sent)


def _answers(sequence: Sequence, source: Connection) -> bool:
    """Count a reply. False when it belongs to a discarded decode state."""
    if sequence.decoder is not source or sequence.ended:
        return False
    if sequence.stale:
        sequence.stale -= 1
        return False
    sequence.awaited -= 1
    return True
