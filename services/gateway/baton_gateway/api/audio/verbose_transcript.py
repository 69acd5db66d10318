"""A transcript with segments, from outputs with timestamps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean

from starlette.requests import Request

from baton.protocol import SpeechInfo
from baton_gateway.api.audio.chunk_outputs import ChunkOutput
from baton_gateway.api.audio.speech_job import SpeechJob
from baton_gateway.api.audio.word_times import word_times
from baton_gateway.engine import Engine
from baton_gateway.generation.choice import Choice
from baton_gateway.schemas.audio.speech_responses import (
    DurationUsage,
    Segment,
    VerboseTranscription,
)
from baton_gateway.speech.fallback import compression
from baton_gateway.speech.languages import language_name
from baton_gateway.speech.segments import TimedTokens, timed_segments

_FRAMES_PER_SECOND = 100
"""Samples per spectrogram frame, the unit of `Segment.seek`."""


async def verbose_transcript(
    request: Request, job: SpeechJob, outputs: Sequence[ChunkOutput], language: str
) -> VerboseTranscription:
    """Return the transcript of a recording from the outputs of its chunks."""
    segments = await all_segments(request, job, outputs)
    transcript = VerboseTranscription(
        task=job.task,
        language=language_name("en" if job.task == "translate" else language),
        duration=job.recording.seconds,
        text="".join(segment.text for segment in segments).lstrip(),
        usage=DurationUsage(job.recording.billed_seconds),
    )
    if job.body.asks_segments:
        transcript.segments = segments
    if job.body.asks_words:
        transcript.words = await word_times(request, job, outputs, language)
    return transcript


async def all_segments(
    request: Request, job: SpeechJob, outputs: Sequence[ChunkOutput]
) -> list[Segment]:
    """Return the segments of all chunks, numbered."""
    segments = list[Segment]()
    for number, output in enumerate(outputs):
        segments += await _segments(request, job, output, number)
    for count, segment in enumerate(segments):
        segment.id = count
    return segments


async def _segments(
    request: Request, job: SpeechJob, output: ChunkOutput, number: int
) -> list[Segment]:
    """The segments of one chunk."""
    engine: Engine = request.app.state.engine
    tokenizers, choice = engine.tokenizers.of(job.model_info.tokenizer), output.choice
    start, end = job.recording.chunks[number].start, job.recording.end(number)
    assert isinstance(job.info, SpeechInfo), "others write no timestamps"
    timed = list(timed_segments(choice.tokens, job.info, start, end))
    texts = await asyncio.gather(*(tokenizers.detokenize(segment.text, True) for segment in timed))
    return [
        Segment(
            id=0,
            seek=round(start * _FRAMES_PER_SECOND),
            start=round(segment.start, 2),
            end=round(segment.end, 2),
            text=text,
            tokens=list(segment.tokens),
            temperature=output.temperature,
            avg_logprob=_mean_logprob(segment, choice),
            compression_ratio=compression(text),
            no_speech_prob=output.no_speech,
        )
        for segment, text in zip(timed, texts, strict=True)
    ]


def _mean_logprob(segment: TimedTokens, choice: Choice) -> float:
    entries = choice.logprobs[segment.first : segment.first + len(segment.tokens)]
    return fmean(entry.logprob for entry in entries) if entries else 0.0
