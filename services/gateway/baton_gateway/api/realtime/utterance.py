"""What is said between two commits, which is transcribed while it comes.

    audio --PrepareSpeech--> chunks --those that are complete--> text

A chunk is complete when the one behind it has begun: where a recording is cut depends only on what
is before. So the text is that of the whole recording by /v1/audio/transcriptions.
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
    """Audio goes in, text comes out. Life cycle: `audio` grows until `committed` is set; meanwhile
    `text` is called whenever it is `ready`, until it is `done`."""

    def __init__(self, rate: int, window: float) -> None:
        """
        Args:
            rate: samples per second.
            window: seconds of audio that are transcribed without waiting for the commit.
        """
        self.id = f"item_{uuid.uuid4().hex}"
        self.audio = AudioBuffer(rate)
        self.settings: SessionSettings | None = None
        """From the commit on, or once a part has been transcribed."""
        self.started = self.committed = self.done = False
        self.usage = SpeechUsage()
        self._window = self._wanted = window
        self._order: OrderedText | None = None
        self._logprobs: list[TokenProbability] | None = None
        self._language = ""
        self._parts = 0

    @property
    def ready(self) -> bool:
        """Whether there is something to transcribe."""
        return self.committed or self.audio.seconds >= self._wanted

    @property
    def empty(self) -> bool:
        """Whether a commit would make nothing of it."""
        return not self._parts and self.audio.seconds < SHORTEST_SECONDS

    @property
    def written(self) -> SpokenText:
        """The text so far."""
        return SpokenText(self._order.text if self._order else "", self._logprobs)

    async def text(
        self, request: Request, body: TranscriptionRequest
    ) -> AsyncGenerator[SpokenText, None]:
        """Transcribe what is complete, and yield its text as it comes. Raises `BatonError`."""
        committed = self.committed  # What comes from now on is for the next time.
        if not (committed and self._parts and not self.audio.data):
            data = self.audio.wav(SHORTEST_SECONDS if self._parts else 0.0)
            language = self._language or body.language
            job = await SpeechJob.begin(request, body, "transcribe", language, data)
            if not committed:
                job.recording = job.recording.without_end()
            async with aclosing(self._transcribed(request, job, language)) as parts:
                async for part in parts:
                    yield part
            self.audio.drop(job.recording.seconds)
        self._wanted = self.audio.seconds + self._window
        self.done = committed

    async def _transcribed(
        self, request: Request, job: SpeechJob, given: str | None
    ) -> AsyncGenerator[SpokenText, None]:
        """The text of all chunks of a job."""
        if not job.recording.chunks:
            return
        self._language = await job.language(given)
        order = self._order = self._order or job.order(self._language)
        engine: Engine = request.app.state.engine
        name, asked = job.facts.name, job.body.asks_logprobs
        vocabulary = await engine.models.vocabulary(name) if asked else None
        started, deltas = await opened(request, await job.generation(self._language))
        self.usage.add(started, job.recording)
        async with aclosing(deltas):
            async for delta in deltas:
                self.usage.written += len(delta.tokens)
                number = self._parts + delta.choice
                part = order.add(msgspec.structs.replace(delta, choice=number))
                if part.text or part.logprobs:
                    yield self._spoken(part, vocabulary)
        self._parts += len(job.recording.chunks)

    def _spoken(self, part: TextPart, vocabulary: Vocabulary | None) -> SpokenText:
        if vocabulary is None:
            return SpokenText(part.text)
        found = token_probabilities(part.logprobs, vocabulary)
        self._logprobs = (self._logprobs or []) + found
        return SpokenText(part.text, found)
