"""POST /v1/audio/transcriptions and /v1/audio/translations

https://platform.openai.com/docs/api-reference/audio
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from baton_gateway.api.answer import event_stream
from baton_gateway.api.audio.chunk_outputs import chunk_outputs
from baton_gateway.api.audio.speech_form import read_speech
from baton_gateway.api.audio.speech_job import SpeechJob
from baton_gateway.api.audio.verbose_transcript import all_segments, verbose_transcript
from baton_gateway.api.collect_answer import opened
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.audio.speech_request import TranscriptionRequest, TranslationRequest
from baton_gateway.schemas.audio.speech_responses import (
    DurationUsage,
    SpeechEvent,
    Transcription,
)
from baton_gateway.speech.subtitles import SUBTITLES
from baton_gateway.streaming.event_frames import EventFrames
from baton_gateway.streaming.speech_transcript import SpeechTranscript, token_probabilities
from baton_gateway.streaming.writer import payloads

router = APIRouter()


@router.post("/v1/audio/transcriptions")
@describe(answer=Transcription, events=SpeechEvent, form=TranscriptionRequest)
async def transcribe(request: Request) -> Response:
    """Transcribe a recording, streamed or not."""
    body, data = await read_speech(request, TranscriptionRequest)
    job = await SpeechJob.begin(request, body, "transcribe", body.language, data)
    return await _answer(request, job, body.language)


@router.post("/v1/audio/translations")
@describe(answer=Transcription, events=SpeechEvent, form=TranslationRequest)
async def translate(request: Request) -> Response:
    """Translate a recording into English text, streamed or not."""
    body, data = await read_speech(request, TranslationRequest)
    job = await SpeechJob.begin(request, body, "translate", body.language, data)
    return await _answer(request, job, body.language)


async def _answer(request: Request, job: SpeechJob, requested_language: str | None) -> Response:
    language = await job.language(requested_language)
    work = await job.generation(language)
    if job.body.stream:
        response = await _stream(request, job, work, language)
    elif job.body.timed:
        response = await _timed(request, job, work, language)
    else:
        response = await _plain(request, job, work, language)
    return work.sinks.admission_headers.apply(response)


async def _stream(
    request: Request, job: SpeechJob, work: GenerationRequest, language: str
) -> Response:
    vocabulary = await _vocabulary(request, job)
    transcript = SpeechTranscript(job.order(language), job.recording, vocabulary)
    started, deltas = await opened(request, work)
    return event_stream(request, payloads(transcript, started, deltas), EventFrames())


async def _plain(
    request: Request, job: SpeechJob, work: GenerationRequest, language: str
) -> Response:
    vocabulary = await _vocabulary(request, job)
    choices = [output.choice for output in await chunk_outputs(request, job, work)]
    order = job.order(language)
    for number, choice in enumerate(choices):
        order.add(OutputDelta(number, choice.text, choice.tokens, reason=choice.reason))
    text = order.text
    if job.body.response_format == "text":
        return PlainTextResponse(f"{text}\n")
    answer = Transcription(text, usage=DurationUsage(job.recording.billed_seconds))
    if vocabulary is not None:
        entries = (entry for choice in choices for entry in choice.logprobs)
        answer.logprobs = token_probabilities(entries, vocabulary)
    return json_response(answer)


async def _timed(
    request: Request, job: SpeechJob, work: GenerationRequest, language: str
) -> Response:
    outputs = await chunk_outputs(request, job, work)
    write = SUBTITLES.get(job.body.response_format)
    if write is not None:
        return PlainTextResponse(write(await all_segments(request, job, outputs)))
    return json_response(await verbose_transcript(request, job, outputs, language))


async def _vocabulary(request: Request, job: SpeechJob) -> Vocabulary | None:
    """The vocabulary, if log-probabilities are requested."""
    engine: Engine = request.app.state.engine
    return await engine.models.vocabulary(job.model_info.name) if job.body.asks_logprobs else None
