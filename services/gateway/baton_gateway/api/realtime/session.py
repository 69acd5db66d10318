"""One client of /v1/realtime: audio events in, transcript events out.

    append -> TurnTaking -> Utterance --commit--> TranscriptionQueue -> text -> deltas
    \\____ one task reads events ____/   \\____ another transcribes ____/

While the queue is full the session does not read, so the client's data waits in its connection. A
client that does not read is disconnected. An invalid event ends neither the session nor anything
else.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from baton.errors import BatonError, InvalidRequest, ServerFault
from baton.logs import logger
from baton_gateway.access.rate_limits import RequestQuota
from baton_gateway.api.audio.speech_job import check_speech
from baton_gateway.api.model_access import permitted
from baton_gateway.api.realtime.transcription_queue import TranscriptionQueue
from baton_gateway.api.realtime.turn_taking import TurnTaking
from baton_gateway.api.realtime.utterance import SHORTEST_SECONDS, Utterance
from baton_gateway.config import Config
from baton_gateway.http.body import build, parse
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.errors import FAULT, invalid
from baton_gateway.http.websocket.protocol import GOING_AWAY
from baton_gateway.schemas.realtime.client_events import (
    AudioAppend,
    AudioCommit,
    ClientEvent,
    read_event,
)
from baton_gateway.schemas.realtime.server_events import (
    BufferCleared,
    ErrorEvent,
    ServerEvent,
    Session,
    SessionCreated,
    SessionUpdated,
)
from baton_gateway.schemas.realtime.session_update import SessionUpdate
from baton_gateway.streaming.realtime_events import event_error

_LONGEST_UPDATE = 65_536
"""Maximum characters of a session.update: longer JSON is not parsed in this process."""
_MOST_ERRORS = 64
"""Invalid events in a row after which the session ends."""
_POLICY, _FAULT = 1008, 1011
"""Close codes of RFC 6455: the client broke a rule, or the server has a fault."""

log = logger(__name__)


class End(NamedTuple):
    """Raised to end the session with a close code."""

    code: int
    """Close code."""
    reason: str


class RealtimeSession:
    """Life cycle: `run` once, after the handshake."""

    def __init__(self, socket: WebSocket, quota: RequestQuota) -> None:
        self._socket = socket
        self._config: Config = socket.app.state.config
        self._queue = TranscriptionQueue(socket, quota, self._send)
        self._turns = TurnTaking(self._queue, self._send, self._commit_item)
        self._name, self._created = f"sess_{uuid.uuid4().hex}", time.time()
        self._expires = self._created + self._config.realtime_session_seconds
        self._last_item: str | None = None
        self._errors = 0

    async def run(self) -> None:
        """Serve the client until it leaves, or until the session ends."""
        transcribing = asyncio.create_task(self._queue.run())
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait((transcribing, reading), return_when=asyncio.FIRST_COMPLETED)
            end = reading.result() if reading.done() else None
            await transcribing
            assert end is not None, "it transcribes until all is read"
            await self._socket.close(end.code, end.reason)
        except WebSocketDisconnect:
            log.info("the client of session %s left", self._name)
        except Exception:
            log.exception("unhandled error")
            await self._fail()
        finally:
            await cancel_tasks(transcribing, reading)

    async def _fail(self) -> None:
        try:
            await self._refuse(ServerFault(FAULT, code="internal_error"), None)
            await self._socket.close(_FAULT)
        except WebSocketDisconnect:
            log.info("the client of session %s left", self._name)

    # Events of the client.

    async def _read(self) -> End:
        """Process events until the session ends. Audio received before is still transcribed."""
        created = int(self._created)
        await self._send(SessionCreated(id=self._name, created=created, session=self._shown()))
        while (end := self._wrong or await self._next()) is None:
            pass
        self._queue.finish()
        return end

    @property
    def _wrong(self) -> End | None:
        return End(_POLICY, "Too many wrong events.") if self._errors >= _MOST_ERRORS else None

    async def _next(self) -> End | None:
        """Receive one event. Raises `WebSocketDisconnect` if the client leaves."""
        remaining = self._expires - time.time()
        try:
            async with asyncio.timeout(min(remaining, self._config.realtime_idle_seconds)):
                message = await self._socket.receive()
        except TimeoutError:
            return self._timed_out()
        if message["type"] != "websocket.disconnect":
            await self._take(message)
            return None
        if message["code"] != GOING_AWAY:
            raise WebSocketDisconnect(message["code"])
        return End(GOING_AWAY, "The server restarts.")

    def _timed_out(self) -> End | None:
        if time.time() >= self._expires:
            return End(_POLICY, "The session has reached its longest time.")
        return None if self._queue.busy else End(_POLICY, "Nothing came for too long.")

    async def _take(self, message: Any) -> None:
        """Process a message, or report what is wrong with it."""
        text, name = message.get("text"), None
        try:
            if text is None:
                raise InvalidRequest("Send events as text, not as bytes.", code="invalid_json")
            event = read_event(text, ClientEvent)
            name = event.event_id
            await self._handler(event.type)(text)
        except BatonError as error:
            self._errors += 1
            await self._refuse(error, name)
        else:
            self._errors = 0

    def _handler(self, kind: str) -> Callable[[str], Coroutine[Any, Any, None]]:
        handlers = {
            "session.update": self._update,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
        }
        if kind not in handlers:
            raise invalid(
                "type",
                f"Unknown event: '{kind[:64]}'. Supported ones are: {', '.join(handlers)}.",
                "unknown_event",
            )
        return handlers[kind]

    async def _update(self, text: str) -> None:
        if len(text) > _LONGEST_UPDATE:
            raise InvalidRequest(
                f"The event is too long. Send at most {_LONGEST_UPDATE} characters."
            )
        update = build(parse(text.encode()), SessionUpdate)
        settings = self._queue.settings.updated(update)
        if settings.rate != self._queue.settings.rate and self._queue.open is not None:
            raise invalid(
                "session.audio.input.format.rate",
                "The rate cannot change within an item. Commit or clear the audio first.",
            )
        turns = settings.turn_detection
        if turns not in (None, self._queue.settings.turn_detection) and self._queue.open:
            raise invalid(
                "session.audio.input.turn_detection",
                "Turns cannot be detected from within an item on. Commit or clear the audio first.",
            )
        if settings.model is not None:
            model_info = await permitted(self._queue.request(), settings.model)
            check_speech(model_info, settings.body(), "transcribe", settings.language)
        self._queue.settings = settings
        await self._send(SessionUpdated(session=self._shown()))

    async def _append(self, text: str) -> None:
        await self._turns.append(read_event(text, AudioAppend).samples())

    async def _commit(self, text: str) -> None:
        final, item = read_event(text, AudioCommit).final, self._queue.open
        events = self._queue.settings.events
        if item is None and not final and events.begins_by_commit:
            return
        if item is None or item.empty:
            seconds = item.audio.seconds if item else 0.0
            raise InvalidRequest(
                f"There is too little audio to commit: {seconds:.2f} s, of {SHORTEST_SECONDS} s at "
                "least. Append more first.",
                code="input_audio_buffer_commit_empty",
            )
        self._turns.stop()
        await self._commit_item(item)

    async def _commit_item(self, item: Utterance) -> None:
        await self._queue.room()
        if self._queue.open is not item:
            return  # It has failed meanwhile, and the error has been sent.
        events = self._queue.settings.events
        if (event := events.committed(item.id, self._last_item)) is not None:
            await self._send(event)
        self._last_item = item.id
        self._queue.commit(item)

    async def _clear(self, text: str) -> None:
        self._turns.stop()
        await self._queue.clear()
        await self._send(BufferCleared())

    # Events of the server.

    def _shown(self) -> Session:
        settings = self._queue.settings
        include = ["item.input_audio_transcription.logprobs"] if settings.logprobs else None
        return Session(self._name, int(self._expires), settings.shown(), include)

    async def _refuse(self, error: BatonError, name: str | None) -> None:
        await self._send(ErrorEvent(error=event_error(error, name)))

    async def _send(self, event: ServerEvent) -> None:
        """Send an event. Raises `WebSocketDisconnect` if the client has left, or does not read."""
        stall = self._config.slow_client_seconds
        try:
            async with asyncio.timeout(stall):
                await self._socket.send_text(msgspec.json.encode(event).decode())
        except TimeoutError as error:
            log.warning("a client read nothing for %g s and was cut off", stall)
            raise WebSocketDisconnect(_POLICY) from error
