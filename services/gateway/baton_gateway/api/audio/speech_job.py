"""A transcription request: one recording, its prompts and its outputs.

file --PrepareSpeech--> chunks --start token alone--> language --prompts--> one output per chunk
"""

from __future__ import annotations

import asyncio
import base64
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs
from starlette.requests import Request

from baton.checkpoint.streamed_speech import TOKEN_SECONDS
from baton.errors import InvalidRequest
from baton.protocol import (
    AnySpeechInfo,
    ChatSpeechInfo,
    MediaItem,
    Pooling,
    Sampling,
    SpeechChunk,
    SpeechInfo,
    StreamedSpeechInfo,
)
from baton.protocol.token_columns import unpack_floats
from baton_gateway.api.collect_answer import collect
from baton_gateway.api.model_access import permitted
from baton_gateway.api.options import deadline, distribution, trace
from baton_gateway.catalogue import ModelInfo
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import serves
from baton_gateway.generation.request import (
    ChatPrompt,
    GenerationRequest,
    PriorOutput,
    RequestIdentity,
    RequestLimits,
    RequestSinks,
    SamplingOptions,
    SpeechPrompt,
    TextPrompt,
)
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.http.disconnect import cancel_on_disconnect
from baton_gateway.http.errors import invalid
from baton_gateway.http.middleware import id_of, quota_of, tenant_of, timeline_of
from baton_gateway.schemas.audio.speech_request import SpeechRequest
from baton_gateway.speech.chat_prompts import speech_chat
from baton_gateway.speech.ordered_text import OrderedText
from baton_gateway.speech.prompts import Task, output_rules, speech_prompt

_ENGLISH = "en"
_RATE, _FRAME = 16_000, 160
"""Whisper's samples per second, and samples per spectrogram frame."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A prepared recording."""

    chunks: tuple[SpeechChunk, ...]
    seconds: float
    settled: float = 0.0
    """Lower bound, in seconds, of the end of its last chunk, whatever audio follows."""

    def without_end(self) -> Recording:
        """The recording without its last chunk. These chunks do not change when audio follows."""
        return Recording(self.chunks[:-1], self.chunks[-1].start)

    def last_chunk(self) -> Recording:
        """The last chunk alone, up to `settled`."""
        last = self.chunks[-1]
        return Recording((last,), self.settled - last.start)

    def end(self, number: int) -> float:
        """Seconds at which a chunk ends."""
        later = self.chunks[number + 1 : number + 2]
        return later[0].start if later else self.seconds

    def num_sounding(self, number: int) -> int:
        """Number of encoder states of a chunk that represent its audio, without padding; one state
        per two frames."""
        seconds = self.end(number) - self.chunks[number].start
        frames = -(-round(seconds * _RATE) // _FRAME)
        return max(1, frames // 2)

    @property
    def billed_seconds(self) -> int:
        """Length of the recording in seconds, rounded up."""
        return math.ceil(self.seconds)

    @property
    def num_states(self) -> int:
        """Number of encoder states that its prompts attend to, in addition to the prompt tokens."""
        media_items = (chunk.media for chunk in self.chunks)
        return sum(media.num_states or media.num_alongside for media in media_items)

    @property
    def num_tokens(self) -> int:
        """Number of placeholder tokens in its prompts."""
        return sum(len(chunk.media.tokens) // 4 for chunk in self.chunks)


class SpeechJob:
    """A transcription request. Life cycle: `begin`, then the methods in any order."""

    def __init__(
        self,
        request: Request,
        body: SpeechRequest,
        task: Task,
        model_info: ModelInfo,
        info: AnySpeechInfo,
        recording: Recording,
    ) -> None:
        self.body, self.task, self.model_info, self.info = body, task, model_info, info
        self.recording = recording
        self._request = request
        self._engine: Engine = request.app.state.engine

    @classmethod
    async def begin(
        cls, request: Request, body: SpeechRequest, task: Task, language: str | None, data: bytes
    ) -> SpeechJob:
        """Check the request, and prepare the recording in `data`.

        Raises `InvalidRequest` for a model of another kind, an unsupported language and a file that
        is no recording.
        """
        model_info = await permitted(request, body.model)
        if body.asks_words and not model_info.max_model_len:
            engine: Engine = request.app.state.engine
            wait = engine.config.service_wait_seconds
            model_info = await engine.models.with_worker(body.model, wait)
        info = check_speech(model_info, body, task, language)
        recording = await cancel_on_disconnect(
            request.receive, _prepared(request, model_info, data)
        )
        return cls(request, body, task, model_info, info, recording)

    async def language(self, given: str | None) -> str:
        """Return the code of the spoken language: `given`, or the most probable one; empty for a
        model that writes it in its output."""
        if not isinstance(self.info, SpeechInfo):
            return given or ""
        if given is not None or not self.info.languages:
            return given or _ENGLISH
        params = Sampling(
            max_tokens=0, temperature=0.0, allowed_ids=tuple(self.info.languages.values())
        )
        first = SpeechPrompt((self.info.start,), self.recording.chunks[0].media)
        _, choices = await collect(self._request, self._one_token_request((first,), params))
        codes = {token: code for code, token in self.info.languages.items()}
        return codes[choices[0].tokens[0]]

    async def no_speech_probabilities(self) -> list[float]:
        """Return the probability of no speech per chunk; 0 if the model has no token for it."""
        if not isinstance(self.info, SpeechInfo) or self.info.no_speech < 0:
            return [0.0] * len(self.recording.chunks)
        ids = (self.info.start, self.info.no_speech)
        prompts = tuple(SpeechPrompt(ids, chunk.media) for chunk in self.recording.chunks)
        params = Sampling(max_tokens=0, temperature=0.0, prompt_logprobs=0)
        _, choices = await collect(self._request, self._one_token_request(prompts, params))
        entries = (choice.prompt_logprobs[1] for choice in choices if choice.prompt_logprobs)
        return [math.exp(entry.logprob) if entry is not None else 0.0 for entry in entries]

    async def token_positions(
        self, language: str, outputs: Sequence[Sequence[int]]
    ) -> list[tuple[float, ...]]:
        """Return, per chunk, the encoder states at which its output tokens begin, except the last
        token. One state is one step of a timestamp."""
        prompt, _ = await self._prompt_and_rules(language)
        assert isinstance(prompt, tuple), "others write no timestamps"
        long = [number for number, tokens in enumerate(outputs) if len(tokens) > 1]
        positions: list[tuple[float, ...]] = [()] * len(outputs)
        if not long:
            return positions
        prompts = tuple(
            SpeechPrompt(
                (*prompt, *outputs[number][:-1]),
                self.recording.chunks[number].media,
                self.recording.num_sounding(number),
            )
            for number in long
        )
        pooling = Pooling(reach="every", aligned_from=len(prompt))
        work = replace(self._one_token_request(prompts, Sampling(max_tokens=0)), pooling=pooling)
        _, choices = await collect(self._request, replace(work, limits=self._limits(0)))
        for number, choice in zip(long, choices, strict=True):
            positions[number] = tuple(unpack_floats(choice.vector or b""))
        return positions

    async def generation(
        self, language: str, prior: PriorOutput | None = None
    ) -> GenerationRequest:
        """Return the generation request for the text, one prompt per chunk.

        Args:
            past: output of the first chunk so far.
        """
        prompt, rules = await self._prompt_and_rules(language)
        body = self.body
        numbers = body.timed or body.asks_logprobs or body.falls_back
        params = structs.replace(
            distribution(body),
            logprobs=0 if numbers else -1,
            processors=rules,
        )
        prompts = tuple(SpeechPrompt(prompt, chunk.media) for chunk in self.recording.chunks)
        return replace(
            self._one_token_request(prompts, params),
            limits=self._limits(body.max_completion_tokens),
            prior_outputs=(prior,) if prior is not None and prior.tokens else (),
            sinks=RequestSinks(
                admission_headers=AdmissionHeaders.of(self._request),
                timeline=timeline_of(self._request),
            ),
        )

    async def generation_ahead(self, prior: PriorOutput) -> GenerationRequest | None:
        """Return the request for the tokens of the last chunk that later audio cannot change: all
        embeddings they depend on exist. None if `past` has them all, or the model reads complete
        chunks only."""
        if not isinstance(self.info, StreamedSpeechInfo):
            return None
        job = SpeechJob(
            self._request,
            self.body,
            self.task,
            self.model_info,
            self.info,
            self.recording.last_chunk(),
        )
        # The last embedding of a spectrogram changes with the audio after it.
        count = int(job.recording.seconds / TOKEN_SECONDS) - self.info.delay - 1
        if count <= len(prior.tokens):
            return None
        return replace(await job.generation("", prior), limits=self._limits(count))

    def order(self, language: str) -> OrderedText:
        """Return the object that joins the outputs of the chunks."""
        if isinstance(self.info, SpeechInfo):
            return OrderedText()
        if isinstance(self.info, StreamedSpeechInfo):
            return OrderedText(spaced=True)
        # The prompt already names a language that the client has given.
        return OrderedText("" if language else self.info.marker, spaced=True)

    async def _prompt_and_rules(
        self, language: str
    ) -> tuple[tuple[int, ...] | ChatPrompt, dict[str, str]]:
        """Return the prompt of each chunk, and the logits processors of its output."""
        text = self.body.prompt.strip()
        if isinstance(self.info, StreamedSpeechInfo):
            if text:
                raise _takes_no_text(self.model_info)
            return self.info.prompt, {}
        if isinstance(self.info, ChatSpeechInfo):
            return speech_chat(self.info, language, text), {}
        prompt = speech_prompt(
            self.info,
            self.task,
            language,
            timestamps=self.body.timed,
            previous=await self._previous_ids(self.info, text),
            max_previous=self.model_info.max_model_len // 2 - 1,
        )
        return prompt, output_rules(self.info, timestamps=self.body.timed)

    async def _previous_ids(self, info: SpeechInfo, text: str) -> Sequence[int]:
        """Ids of the client's text before the recording."""
        if not text:
            return ()
        if info.previous < 0:
            raise _takes_no_text(self.model_info)
        tokenizers = self._engine.tokenizers.of(self.model_info.tokenizer)
        # The tokenizer expects a space before a word.
        prompt = TextPrompt(f" {text}", add_special=False)
        return await tokenizers.encode(prompt, len(text.encode()) + 1, trace(self._request))

    def _one_token_request(
        self, prompts: tuple[SpeechPrompt, ...], params: Sampling
    ) -> GenerationRequest:
        """A request for one token per prompt."""
        seed = secrets.randbits(63) if self.body.seed is None else self.body.seed & (2**64 - 1)
        return GenerationRequest(
            RequestIdentity(
                f"trsc-{id_of(self._request)[4:]}",
                trace=trace(self._request),
                tenant=tenant_of(self._request) or self.body.user or "",
                quota=quota_of(self._request),
            ),
            prompts,
            SamplingOptions(params, seed=seed),
            model=self.body.model,
            param="file",
            limits=self._limits(1),
        )

    def _limits(self, max_tokens: int | None) -> RequestLimits:
        return RequestLimits(max_tokens, deadline(self._request), self.body.priority)


def _takes_no_text(model_info: ModelInfo) -> InvalidRequest:
    return invalid(
        "prompt",
        f"Unsupported value: the model `{model_info.name}` takes no text. Leave it out.",
        "unsupported_value",
    )


def check_speech(
    model_info: ModelInfo, body: SpeechRequest, task: Task, language: str | None
) -> AnySpeechInfo:
    """Return the model's prompt information. Raises `InvalidRequest` for a model or an option that
    is not supported."""
    info = model_info.speech
    if info is None:
        raise _model_error(model_info, f"does not transcribe speech. {serves(model_info)}")
    if task == "translate" and (not isinstance(info, SpeechInfo) or info.translate < 0):
        raise _model_error(model_info, "does not translate. Use /v1/audio/transcriptions.")
    _check_times(model_info, body, info)
    if body.falls_back and not isinstance(info, SpeechInfo):
        raise InvalidRequest(
            f"The model `{model_info.name}` does not transcribe by Whisper's recipe. Leave out the "
            "thresholds.",
            code="unsupported_value",
            param="logprob_threshold",
        )
    _check_language(model_info, info, language)
    return info


def _model_error(model_info: ModelInfo, reason: str) -> InvalidRequest:
    message = f"The model `{model_info.name}` {reason}"
    return InvalidRequest(message, code="unsupported_value", param="model")


def _check_times(model_info: ModelInfo, body: SpeechRequest, info: AnySpeechInfo) -> None:
    if body.timed and not isinstance(info, SpeechInfo):
        raise invalid(
            "response_format",
            f"Unsupported value: the model `{model_info.name}` writes no timestamps. Use 'json' or "
            "'text'.",
            "unsupported_value",
        )
    if body.asks_words and not model_info.alignment:
        raise invalid(
            "timestamp_granularities[]",
            f"Unsupported value: the model `{model_info.name}` does not say when words are spoken: "
            "its generation_config.json lists no alignment heads that it has, or several ranks "
            "have a part of it each. Use 'segment'.",
            "unsupported_value",
        )


def _check_language(model_info: ModelInfo, info: AnySpeechInfo, language: str | None) -> None:
    if language is None:
        return
    if isinstance(info, StreamedSpeechInfo):
        raise invalid(
            "language",
            f"Unsupported value: the model `{model_info.name}` takes no language. Leave it out.",
            "unsupported_value",
        )
    languages = info.languages or (() if isinstance(info, ChatSpeechInfo) else (_ENGLISH,))
    if language not in languages:
        raise invalid(
            "language",
            f"Invalid 'language': {language[:16]!r} is not the ISO 639 code of a language that the "
            f"model `{model_info.name}` takes, such as {', '.join(sorted(languages)[:9])}.",
        )


async def _prepared(request: Request, model_info: ModelInfo, data: bytes) -> Recording:
    """Send a recording to the media preprocessors and return its chunks. A long recording needs
    several messages."""
    engine: Engine = request.app.state.engine
    text = (await asyncio.to_thread(base64.b64encode, data)).decode()
    item = MediaItem("audio", f"data:audio/octet-stream;base64,{text}", "file")
    chunks, total, seconds, settled = list[SpeechChunk](), 1, 0.0, 0.0
    while len(chunks) < total:
        answer = await engine.preprocessors.prepare_speech(
            item, len(chunks), model_info.model, trace(request), tenant_of(request)
        )
        chunks += answer.chunks
        total, seconds, settled = answer.num_chunks, answer.seconds, answer.settled
    return Recording(tuple(chunks), seconds, settled)
