"""Audio between two commits, transcribed while it arrives.

    audio --PrepareSpeech--> chunks --complete ones--> text

A chunk is complete once the next one has begun, because the cut positions depend only on earlier
audio. A streaming model also transcribes the beginning of the last chunk; the next request
continues from those tokens. So the text equals that of /v1/audio/transcriptions for the complete
recording.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request

from baton_gateway.api.audio.speech_job import SpeechJob
from baton_gateway.api.collect_answer import opened
from baton_gateway.api.realtime.session_settings import SessionSettings
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.request import PriorOutput
from baton_gateway.schemas.audio.speech_request import TranscriptionRequest
from baton_gateway.schemas.audio.speech_responses import TokenProbability
from baton_gateway.speech.audio_buffer import AudioBuffer
from baton_gateway.speech.ordered_text import OrderedText, TextPart
from baton_gateway.streaming.realtime_events import SpokenText
from baton_gateway.streaming.speech_transcript import token_probabilities
from baton_gateway.streaming.speech_usage import SpeechUsage

SHORTEST_SECONDS = 0.1
"""Shorter recordings cannot be transcribed."""


class Utterance:
    """Audio in, text out. Life cycle: `audio` grows until `committed` is set; `text` is called
    whenever it is `ready`, until it is `done`."""

    def __init__(self, rate: int, window: float) -> None:
        """
        Args:
            rate: samples per second.
            window: seconds of new audio that make it `ready` before the commit.
        """
        self.id = f"item_{uuid.uuid4().hex}"
        self.audio = AudioBuffer(rate)
        self.settings: SessionSettings | None = None
        """Set by the commit, or by the first transcribed part."""
        self.started = self.committed = self.done = False
        self.usage = SpeechUsage()
        self._window = self._next_seconds = window
        self._order: OrderedText | None = None
        self._logprobs: list[TokenProbability] | None = None
        self._language = ""
        self._parts = 0
        self._prior = PriorOutput()
        """Output of the incomplete chunk."""

    @property
    def ready(self) -> bool:
        """Whether there is audio to transcribe."""
        return self.committed or self.audio.seconds >= self._next_seconds

    @property
    def empty(self) -> bool:
        """Whether committing it would have no effect."""
        return not self._parts and self.audio.seconds < SHORTEST_SECONDS

    @property
    def written(self) -> SpokenText:
        """The text so far."""
        return SpokenText(self._order.text if self._order else "", self._logprobs)

    async def text(
        self, request: Request, body: TranscriptionRequest
    ) -> AsyncGenerator[SpokenText, None]:
        """Transcribe the complete chunks, and yield their text as it is generated. Raises
        `BatonError`."""
        committed = self.committed  # A commit from here on counts for the next call.
        if not (committed and self._parts and not self.audio.data):
            data = self.audio.wav(SHORTEST_SECONDS if self._parts else 0.0)
            language = self._language or body.language
            job = await SpeechJob.begin(request, body, "transcribe", language, data)
            recording = job.recording
            if not committed:
                job.recording = recording.without_end()
            async with aclosing(self._transcribed(request, job, language)) as parts:
                async for part in parts:
                    yield part
            self.audio.drop(job.recording.seconds)
            if not committed:
                job.recording = recording
                async with aclosing(self._written_ahead(request, job)) as parts:
                    async for part in parts:
                        yield part
        self._next_seconds = self.audio.seconds + self._window
        self.done = committed

    async def _transcribed(
        self, request: Request, job: SpeechJob, language: str | None
    ) -> AsyncGenerator[SpokenText, None]:
        """Transcribe all chunks of a job."""
        if not job.recording.chunks:
            return
        self._language = await job.language(language)
        order = self._order = self._order or job.order(self._language)
        vocabulary = await self._vocabulary(request, job)
        generation = await job.generation(self._language, self._prior)
        started, deltas = await opened(request, generation)
        self.usage.add(started, job.recording)
        async with aclosing(deltas):
            async for delta in deltas:
                self.usage.written += len(delta.tokens)
                number = self._parts + delta.choice
                part = order.add(msgspec.structs.replace(delta, choice=number))
                if part.text or part.logprobs:
                    yield self._spoken(part, vocabulary)
        self._parts += len(job.recording.chunks)
        self._prior = PriorOutput()

    async def _written_ahead(
        self, request: Request, job: SpeechJob
    ) -> AsyncGenerator[SpokenText, None]:
        """Transcribe the incomplete chunk as far as later audio cannot change the text."""
        generation = await job.generation_ahead(self._prior)
        if generation is None:
            return
        order = self._order = self._order or job.order("")
        vocabulary = await self._vocabulary(request, job)
        _, deltas = await opened(request, generation)
        pending: OutputDelta | None = None
        async with aclosing(deltas):
            async for delta in deltas:
                pending = delta if pending is None else pending.then(delta)
                if _is_open(pending):
                    continue
                certain = msgspec.structs.replace(pending, choice=self._parts, reason=None)
                pending = None
                self._prior.add(certain)
                self.usage.written += len(certain.tokens)
                part = order.add(certain)
                if part.text or part.logprobs:
                    yield self._spoken(part, vocabulary)

    async def _vocabulary(self, request: Request, job: SpeechJob) -> Vocabulary | None:
        """The vocabulary, if log-probabilities are requested."""
        if not job.body.asks_logprobs:
            return None
        engine: Engine = request.app.state.engine
        return await engine.models.vocabulary(job.model_info.name)

    def _spoken(self, part: TextPart, vocabulary: Vocabulary | None) -> SpokenText:
        if vocabulary is None:
            return SpokenText(part.text)
        probabilities = token_probabilities(part.logprobs, vocabulary)
        self._logprobs = (self._logprobs or []) + probabilities
        return SpokenText(part.text, probabilities)


def _is_open(delta: OutputDelta) -> bool:
    """Whether the text of the last token depends on later tokens, so that it must be generated
    again with them. An answer that ended may continue when more audio arrives."""
    if delta.reason is None:
        return not delta.text
    return delta.reason == "stop" or delta.text.endswith("\ufffd")
