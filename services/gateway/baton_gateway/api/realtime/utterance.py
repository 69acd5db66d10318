"""What is said between two commits, which is transcribed while it comes.

    audio --PrepareSpeech--> chunks --those that are complete--> text

A chunk is complete when the one behind it has begun: where a recording is cut depends only on what
is before. A model that writes while it hears begins the last chunk before it is complete: the next
request continues from the tokens of the one before. So the text is that of the whole recording by
/v1/audio/transcriptions.
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
    """Audio goes in, text comes out. Life cycle: `audio` grows until `committed` is set; meanwhile
    `text` is called whenever it is `ready`, until it is `done`."""

    def __init__(self, rate: int, window: float) -> None:
        """
        Args:
            rate: samples per second.
            window: seconds of audio after which it is transcribed again before the commit.
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
        self._past = PriorOutput()
        """What has been written of the chunk that is not complete."""

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
            whole = job.recording
            if not committed:
                job.recording = whole.without_end()
            async with aclosing(self._transcribed(request, job, language)) as parts:
                async for part in parts:
                    yield part
            self.audio.drop(job.recording.seconds)
            if not committed:
                job.recording = whole
                async with aclosing(self._written_ahead(request, job)) as parts:
                    async for part in parts:
                        yield part
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
        vocabulary = await self._vocabulary(request, job)
        generation = await job.generation(self._language, self._past)
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
        self._past = PriorOutput()

    async def _written_ahead(
        self, request: Request, job: SpeechJob
    ) -> AsyncGenerator[SpokenText, None]:
        """The text of the chunk that is not complete, as far as it is certain."""
        generation = await job.generation_ahead(self._past)
        if generation is None:
            return
        order = self._order = self._order or job.order("")
        vocabulary = await self._vocabulary(request, job)
        _, deltas = await opened(request, generation)
        held: OutputDelta | None = None
        async with aclosing(deltas):
            async for delta in deltas:
                held = delta if held is None else held.then(delta)
                if _is_open(held):
                    continue
                certain = msgspec.structs.replace(held, choice=self._parts, reason=None)
                held = None
                self._past.add(certain)
                self.usage.written += len(certain.tokens)
                part = order.add(certain)
                if part.text or part.logprobs:
                    yield self._spoken(part, vocabulary)

    async def _vocabulary(self, request: Request, job: SpeechJob) -> Vocabulary | None:
        """What names the tokens of log-probabilities, if these are asked for."""
        if not job.body.asks_logprobs:
            return None
        engine: Engine = request.app.state.engine
        return await engine.models.vocabulary(job.facts.name)

    def _spoken(self, part: TextPart, vocabulary: Vocabulary | None) -> SpokenText:
        if vocabulary is None:
            return SpokenText(part.text)
        found = token_probabilities(part.logprobs, vocabulary)
        self._logprobs = (self._logprobs or []) + found
        return SpokenText(part.text, found)


def _is_open(delta: OutputDelta) -> bool:
    """Whether the text of the last of these tokens depends on what follows: they are generated
    again with it. An answer that stops may go on when more is heard."""
    if delta.reason is None:
        return not delta.text
    return delta.reason == "stop" or delta.text.endswith("\ufffd")
