"""Queue of a session's utterances, which are transcribed in turn."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.websockets import WebSocket

from baton.errors import BatonError
from baton.logs import logger
from baton.protocol import StreamedSpeechInfo
from baton_gateway.access.rate_limits import RequestQuota
from baton_gateway.api.realtime.session_settings import SessionSettings, no_model
from baton_gateway.api.realtime.utterance import Utterance
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.http.clientless_request import clientless_request
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.errors import invalid
from baton_gateway.http.middleware import quota_of
from baton_gateway.schemas.realtime.server_events import ServerEvent

_MOST_WAITING = 16
"""Maximum committed utterances; with more, the session stops reading."""
Send = Callable[[ServerEvent], Awaitable[None]]
"""Sends an event to the client."""

log = logger(__name__)


def _first_model(socket: WebSocket) -> str | None:
    """The model until `session.update` sets one: the one in the URL, or the only one."""
    engine: Engine = socket.app.state.engine
    models = engine.models.catalogue.models
    return socket.query_params.get("model") or (models[0] if len(models) == 1 else None)


class TranscriptionQueue:
    """Life cycle: `run` once as a task; meanwhile audio is added and committed, until `finish`."""

    def __init__(self, socket: WebSocket, quota: RequestQuota, send: Send) -> None:
        self.settings = SessionSettings(model=_first_model(socket))
        """Settings of the next utterance."""
        self._socket, self._quota, self._send = socket, quota, send
        self._config: Config = socket.app.state.config
        self._queue = deque[Utterance]()
        """Utterances; all but the last are committed."""
        self._part: asyncio.Task[None] | None = None
        """Task that transcribes a part of the first utterance."""
        self._running: Utterance | None = None
        self._changed = asyncio.Event()
        self._finishing = False

    @property
    def open(self) -> Utterance | None:
        """The utterance that receives audio."""
        return self._queue[-1] if self._queue and not self._queue[-1].committed else None

    @property
    def busy(self) -> bool:
        """Whether there is audio to transcribe."""
        return bool(self._queue) and self._queue[0].ready

    async def append(self, data: bytes) -> None:
        """Add audio once there is room. Raises `InvalidRequest` if there will be none."""
        most = self._config.max_audio_clip_filesize_mb << 20
        while sum(len(utterance.audio.data) for utterance in self._queue) + len(data) > most:
            if not self.busy:
                raise invalid(
                    "audio",
                    f"The audio that waits would exceed {most} bytes. Commit or clear it first.",
                    "input_audio_buffer_full",
                )
            await self._change()
        if self.open is None:
            self._queue.append(Utterance(self.settings.rate, self._window()))
        self._queue[-1].audio.data += data
        self._changed.set()

    def _window(self) -> float:
        """Seconds of audio after which transcription begins before a commit."""
        engine: Engine = self._socket.app.state.engine
        model_info = engine.models.catalogue.get(self.settings.model or "")
        if model_info is not None and isinstance(model_info.speech, StreamedSpeechInfo):
            return self._config.realtime_step_seconds
        return self._config.realtime_window_seconds

    async def room(self) -> None:
        """Wait for room for another utterance. Raises `InvalidRequest` without a model."""
        if self.settings.model is None:
            raise no_model()
        while len(self._queue) > _MOST_WAITING:
            await self._change()

    def commit(self, item: Utterance) -> None:
        """Commit the open utterance."""
        item.settings = item.settings or self.settings
        item.committed = True
        self._changed.set()

    async def clear(self) -> None:
        """Discard the open utterance."""
        if self.open is None:
            return
        if self._queue.pop() is self._running and self._part is not None:
            await cancel_tasks(self._part)

    def finish(self) -> None:
        """Let `run` return after the audio so far is transcribed."""
        if (item := self.open) is not None:
            if item.empty:
                self._queue.pop()
            else:
                self.commit(item)
        self._finishing = True
        self._changed.set()

    async def run(self) -> None:
        """Transcribe. Raises `WebSocketDisconnect` when the client has left."""
        while True:
            while not self.busy:
                if self._finishing:
                    return
                await self._change()
            self._running = self._queue[0]
            self._part = asyncio.ensure_future(self._transcribe(self._running))
            try:
                await asyncio.wait((self._part,))
            finally:
                await cancel_tasks(self._part)
            if not self._part.cancelled():
                self._part.result()
            self._part = self._running = None
            self._changed.set()

    def request(self) -> Request:
        """Create a request that is charged to the client."""
        name, headers = uuid.uuid4().hex, self._socket.headers.raw
        quota = self._quota.limiter.quota(self._quota.key)
        return clientless_request(self._socket.app, name, self._socket.url.path, quota, headers)

    async def _change(self) -> None:
        """Wait for new work."""
        self._changed.clear()
        await self._changed.wait()

    async def _transcribe(self, item: Utterance) -> None:
        """Transcribe and send the complete part of the first utterance."""
        settings = item.settings = item.settings or self.settings
        try:
            request = self.request()
            if not item.started:
                await quota_of(request).request()
                item.started = True
            async with aclosing(item.text(request, settings.body())) as parts:
                async for part in parts:
                    await self._send(settings.events.delta(item.id, part))
        except BatonError as error:
            self._queue.popleft()
            if error.status >= 500:
                log.warning("%s: %s", error.code, error.message)
            await self._send(settings.events.failed(item.id, error))
        else:
            if item.done:
                self._queue.popleft()
                event = settings.events.done(item.id, item.written, item.usage.tokens)
                await self._send(event)
