"""Items that begin and end with what the client says, where its session asks for that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from baton.errors import InvalidRequest
from baton_gateway.api.realtime.transcription_queue import Send, TranscriptionQueue
from baton_gateway.api.realtime.utterance import Utterance
from baton_gateway.schemas.realtime.server_events import SpeechStarted, SpeechStopped
from baton_gateway.schemas.realtime.session_update import TurnDetection
from baton_gateway.speech.turn_detector import SpeechEnd, SpeechStart, TurnDetector, TurnPart

_SAMPLE_BYTES = 2


class TurnTaking:
    """Passes audio on to the queue: all of it, or the turns in it.

    Args:
        commit: ends an item, as the event of a client does.
    """

    def __init__(
        self, queue: TranscriptionQueue, send: Send, commit: Callable[[Utterance], Awaitable[None]]
    ) -> None:
        self._queue, self._send, self._commit = queue, send, commit
        self._seconds = 0.0
        """Of all audio so far."""
        self._detector: TurnDetector | None = None
        self._made_for: tuple[TurnDetection | None, int] = (None, 0)
        self._item: Utterance | None = None
        """That of the current turn."""

    async def append(self, data: bytes) -> None:
        """Take audio. Raises `InvalidRequest` if there is no room for it."""
        detector = self._current()
        self._seconds += len(data) / (_SAMPLE_BYTES * self._queue.settings.rate)
        if detector is None:
            await self._queue.append(data)
            return
        try:
            for part in detector.hear(data):
                await self._take(part)
        except InvalidRequest:
            detector.stop()
            raise

    def stop(self) -> None:
        """The current turn ends here: the client commits it, or clears it."""
        if self._detector is not None:
            rest = self._detector.stop()
            if self._item is not None and self._item is self._queue.open:
                self._item.audio.data += rest
        self._item = None

    def _current(self) -> TurnDetector | None:
        """The detector of the settings as they are."""
        asked, rate = self._queue.settings.turn_detection, self._queue.settings.rate
        if self._made_for != (asked, rate):
            self._made_for, self._item, self._detector = (asked, rate), None, None
            if asked is not None:
                durations = asked.prefix_padding_ms, asked.silence_duration_ms
                begin = round(self._seconds * 1000)
                self._detector = TurnDetector(rate, asked.threshold, *durations, begin)
        return self._detector

    async def _take(self, part: TurnPart) -> None:
        if isinstance(part, SpeechStart):
            await self._queue.append(part.data)
            self._item = self._queue.open
            assert self._item is not None, "there is audio"
            await self._send(SpeechStarted(audio_start_ms=part.ms, item_id=self._item.id))
        elif self._item is None or self._item is not self._queue.open:
            return  # It has failed, and the client has been told: what follows is of no item.
        elif isinstance(part, SpeechEnd):
            item, self._item = self._item, None
            await self._send(SpeechStopped(audio_end_ms=part.ms, item_id=item.id))
            await self._commit(item)
        else:
            await self._queue.append(part.data)
