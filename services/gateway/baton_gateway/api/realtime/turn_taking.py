"""Turn detection: items begin and end with speech if the session's settings ask for it."""

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
    """Passes audio to the queue: all of it, or only the detected turns.

    Args:
        commit: ends an item, as a client's commit event does.
    """

    def __init__(
        self, queue: TranscriptionQueue, send: Send, commit: Callable[[Utterance], Awaitable[None]]
    ) -> None:
        self._queue, self._send, self._commit = queue, send, commit
        self._seconds = 0.0
        """Seconds of all audio so far."""
        self._detector: TurnDetector | None = None
        self._made_for: tuple[TurnDetection | None, int] = (None, 0)
        self._item: Utterance | None = None
        """Item of the current turn."""

    async def append(self, data: bytes) -> None:
        """Process audio. Raises `InvalidRequest` if the queue has no room for it."""
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
        """End the current turn: the client has committed or cleared it."""
        if self._detector is not None:
            remainder = self._detector.stop()
            if self._item is not None and self._item is self._queue.open:
                self._item.audio.data += remainder
        self._item = None

    def _current(self) -> TurnDetector | None:
        """The detector of the current settings."""
        detection, rate = self._queue.settings.turn_detection, self._queue.settings.rate
        if self._made_for != (detection, rate):
            self._made_for, self._item, self._detector = (detection, rate), None, None
            if detection is not None:
                durations = detection.prefix_padding_ms, detection.silence_duration_ms
                begin = round(self._seconds * 1000)
                self._detector = TurnDetector(rate, detection.threshold, *durations, begin)
        return self._detector

    async def _take(self, part: TurnPart) -> None:
        if isinstance(part, SpeechStart):
            await self._queue.append(part.data)
            self._item = self._queue.open
            assert self._item is not None, "there is audio"
            await self._send(SpeechStarted(audio_start_ms=part.ms, item_id=self._item.id))
        elif self._item is None or self._item is not self._queue.open:
            return  # The item has failed and the error was sent: drop the audio.
        elif isinstance(part, SpeechEnd):
            item, self._item = self._item, None
            await self._send(SpeechStopped(audio_end_ms=part.ms, item_id=item.id))
            await self._commit(item)
        else:
            await self._queue.append(part.data)
