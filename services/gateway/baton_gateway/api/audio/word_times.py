"""Times of the words of a recording, from the positions of tokens in the audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request

from baton.protocol import SpeechInfo
from baton_gateway.api.audio.chunk_outputs import ChunkOutput
from baton_gateway.api.audio.speech_job import SpeechJob
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.schemas.audio.speech_responses import Word
from baton_gateway.speech.segments import STEP_SECONDS, timed_segments
from baton_gateway.speech.words import split_words


async def word_times(
    request: Request, job: SpeechJob, outputs: Sequence[ChunkOutput], language: str
) -> list[Word]:
    """Return the words of a recording from the outputs of its chunks."""
    engine: Engine = request.app.state.engine
    vocabulary = await engine.models.vocabulary(job.model_info.name)
    tokens = [output.choice.tokens for output in outputs]
    places = await job.token_positions(language, tokens)
    return [
        word
        for number, (words, at) in enumerate(zip(tokens, places, strict=True))
        for word in _words(job, number, words, at, vocabulary, language)
    ]


def _words(
    job: SpeechJob,
    number: int,
    tokens: Sequence[int],
    places: Sequence[float],
    vocabulary: Vocabulary,
    language: str,
) -> Iterator[Word]:
    """The words of one chunk. A token lasts from the beginning of the previous token to its own,
    since an alignment head attends to the next token."""
    assert isinstance(job.info, SpeechInfo), "others write no timestamps"
    start, end = job.recording.chunks[number].start, job.recording.end(number)
    times = [min(start + place * STEP_SECONDS, end) for place in (0, *places)]
    for segment in timed_segments(tokens, job.info, start, end):
        numbers = [
            n for n, token in enumerate(segment.tokens, segment.first) if token < job.info.end
        ]
        pieces = [vocabulary.piece(tokens[n]) for n in numbers]
        for word in split_words(pieces, language):
            if text := word.text.strip():
                last = min(numbers[word.last] + 1, len(places))
                yield Word(text, round(times[numbers[word.first]], 2), round(times[last], 2))
