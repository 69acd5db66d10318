"""The media preprocessing service: answers `Prepare`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias, TypeVar

from baton import __version__
from baton.checkpoint.hub import resolve, served_name
from baton.errors import InvalidRequest, SettingsError
from baton.logs import logger
from baton.net.handshake import incarnation
from baton.net.sockets import Received
from baton.net.topology import MEDIA
from baton.process import rpc_server, standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.rpc_server import Deferred
from baton.protocol import (
    Hello,
    MediaInfo,
    MediaItem,
    Message,
    Prepare,
    Prepared,
    PreparedMedia,
    PreparedSpeech,
    PrepareSpeech,
    SpeechChunk,
)
from baton.protocol.media import MAX_PIXEL_BYTES
from baton.protocol.token_columns import pack
from baton.setting_lists import listed
from baton.telemetry import span
from baton_mm_preprocess.audio.audio_input import AudioInput
from baton_mm_preprocess.audio.decode import AudioLimits
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.speech_split import SpeechSplit
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.model_info import Model, read_model
from baton_mm_preprocess.sandbox.pool import DecodePool
from baton_mm_preprocess.sandbox.process import (
    AudioSetup,
    Outcome,
    Problem,
    Ready,
    ReadySpeech,
    Setup,
    VideoSetup,
)
from baton_mm_preprocess.video.decode import VideoLimits

log = logger(__name__)


_CLIP_SECONDS = 30
"""Longest part of a recording for models without chunks of one length."""

R = TypeVar("R", Ready, ReadySpeech)
Look: TypeAlias = Callable[[MediaItem], Outcome]
"""Converts an item."""


def prepare(model: Model, request: Prepare, outcomes: Iterator[Outcome]) -> Prepared:
    """Tensors of a request. Raises `InvalidRequest` for the first invalid part, and any error of
    `outcomes`, which converts its items in order."""
    prepared = list[PreparedMedia]()
    for place, item in enumerate(request.items):
        model.check(item)
        _check_images(model, _num_images(request.items[: place + 1]), item)
        _check_alone(model, request.items[: place + 1])
        ready = _checked(next(outcomes), item, Ready)
        number = _num_images(request.items[:place])
        prepared.append(_KINDS.get(item.modality, _image)(model, item, ready, number))
        if ready.sound is not None:
            prepared.append(_sound(ready.sound))
        _check_size(prepared, item)
    return Prepared(request.id, tuple(prepared))


def prepare_speech(model: Model, request: PrepareSpeech, look: Look) -> PreparedSpeech:
    """Tensors of the chunks of a recording. Raises as `prepare`."""
    item = request.item
    model.check(item)
    ready = _checked(look(item), item, ReadySpeech)
    pairs = zip(ready.starts, ready.chunks, strict=True)
    chunks = tuple(SpeechChunk(start, _audio(model, item, chunk, 0)) for start, chunk in pairs)
    return PreparedSpeech(request.id, chunks, ready.num_chunks, ready.seconds, ready.settled)


def _checked(outcome: Outcome, item: MediaItem, kind: type[R]) -> R:
    """The child's result for an item. Raises `InvalidRequest`."""
    if isinstance(outcome, Problem):
        raise InvalidRequest(
            outcome.message, code=outcome.code, param=item.param, status=outcome.status
        )
    assert isinstance(outcome, kind), "the child returned a result of another type"
    return outcome


def _check_images(model: Model, count: int, last: MediaItem) -> None:
    most = 0 if model.images is None else model.images.most_images
    if most and count > most:
        raise InvalidRequest(
            f"The model {model.name} takes {most} image in a request and its conversation. "
            "Send fewer.",
            code="too_many_images",
            param=last.param,
        )


def _check_alone(model: Model, items: Sequence[MediaItem]) -> None:
    sounds = [item for item in items if item.modality == "audio"]
    if sounds and model.audio is not None and model.audio.alone and _num_images(items):
        raise InvalidRequest(
            f"Baton does not support images and audio in one request to the model {model.name}, "
            "which encodes such audio in another way. Send them in separate conversations.",
            code="unsupported_value",
            param=items[-1].param,
        )


def _num_images(items: Sequence[MediaItem]) -> int:
    return sum(item.modality in ("image", "image_embeds") for item in items)


def _check_size(prepared: Sequence[PreparedMedia], last: MediaItem) -> None:
    """Raise `InvalidRequest` if the tensors are too large for the one message that carries them."""
    if sum(item.pixels.num_bytes for item in prepared) > MAX_PIXEL_BYTES:
        raise InvalidRequest(
            f"The media up to this one have more than {MAX_PIXEL_BYTES >> 20} MiB of pixels as "
            "the model takes them. Send fewer or smaller ones.",
            code=f"{last.modality}_too_large",
            param=last.param,
        )


def _image(model: Model, item: MediaItem, ready: Ready, number: int) -> PreparedMedia:
    """Convert the result of an image; `number` counts the images before it."""
    images = model.images
    assert images is not None, "the model has been checked"
    tokens = images.tokens(ready.grid, ready.num_tokens, number)
    return PreparedMedia(
        digest=ready.digest,
        tokens=pack(tokens),
        pixels=ready.tensor,
        marker=images.marker,
        grid=ready.grid,
        spans=images.spans(tokens),
        num_states=ready.num_tokens if images.cross else 0,
        is_embeds=item.modality == "image_embeds",
        whole_prompt=images.whole_prompt,
    )


def _video(model: Model, item: MediaItem, ready: Ready, number: int) -> PreparedMedia:
    videos, times = model.videos, ready.times
    assert videos is not None and times is not None, "the model has been checked"
    if ready.sound is None:
        tokens = videos.tokens(ready.grid, ready.num_tokens, times)
    else:
        assert videos.sound is not None, "the model has been checked"
        counts = (ready.num_tokens, ready.sound.num_tokens)
        tokens = videos.sound.tokens(ready.grid, *counts, times.seconds_per_grid)
    return PreparedMedia(
        digest=ready.digest,
        tokens=pack(tokens),
        pixels=ready.tensor,
        marker=videos.marker,
        grid=ready.grid,
        seconds_per_grid=times.seconds_per_grid,
    )


def _sound(ready: Ready) -> PreparedMedia:
    """Convert the sound of the previous clip."""
    return PreparedMedia(
        digest=ready.digest,
        tokens=b"",
        pixels=ready.tensor,
        grid=ready.grid,
        num_within=ready.num_tokens,
    )


def _audio(model: Model, item: MediaItem, ready: Ready, number: int) -> PreparedMedia:
    audio = model.audio
    assert audio is not None, "the model has been checked"
    return PreparedMedia(
        digest=ready.digest,
        tokens=b"" if audio.alongside else pack(audio.tokens(ready.num_tokens)),
        pixels=ready.tensor,
        marker=audio.marker,
        grid=ready.grid,
        num_states=ready.num_tokens if audio.cross else 0,
        num_alongside=ready.num_tokens if audio.alongside else 0,
    )


_KINDS = {"video": _video, "audio": _audio}
"""Plural of a modality, for errors; the others are images."""


def _too_many(items: str, most: int, item: MediaItem) -> InvalidRequest:
    return InvalidRequest(
        f"{items} are too many: this server takes {most}.",
        code="array_above_max_length",
        param=item.param,
    )


class Preprocessor:
    """The service's replies; children decode the files, so the loop never waits for them."""

    def __init__(self, model: Model, config: Config) -> None:
        self._model, self._max_items, self._limits = model, config.max_items, config.limits
        self._wait = config.media_wait_seconds
        self._children: DecodePool | None = None
        if model.takes_files:
            setup = setup_of(model, config)
            self._children = DecodePool(
                setup, config.decode_processes, config.media_seconds, config.max_queued_requests
            )
            self._children.start()

    @property
    def idle(self) -> bool:
        """True, since there is no state between requests."""
        return True

    def handle(self, received: Received) -> Message | Deferred:
        """Reply at once if no file is needed, else defer to a child.

        Raises:
            InvalidRequest: an item is not supported by this model, or there are too many.
        """
        request = received.message
        if isinstance(request, PrepareSpeech):
            return self._speech(received, request)
        assert isinstance(request, Prepare)
        for item in request.items:
            self._model.check(item)
        self._check_count(request)
        children = self._children
        if children is None or not request.items:
            return Prepared(request.id, ())
        until, count = time.monotonic() + self._wait, _num_images(request.items)

        def look(item: MediaItem) -> Outcome:
            sound = self._model.wants_sound(item)
            return children.prepare(
                item.url, request.tenant, until, item.modality, count, sound=sound
            )

        def work() -> Prepared:
            trace = received.envelope.trace
            with span("prepare", trace), closing(children.map(look, request.items)) as outcomes:
                return prepare(self._model, request, outcomes)

        return Deferred(work, children.submit)

    def _speech(self, received: Received, request: PrepareSpeech) -> Deferred:
        """Defer a recording to a child. Raises `InvalidRequest` for a model without audio input."""
        self._model.check(request.item)
        children, until = self._children, time.monotonic() + self._wait
        assert children is not None, "a model with audio input takes files"

        def look(item: MediaItem) -> Outcome:
            return children.prepare(
                item.url, request.tenant, until, item.modality, first_chunk=request.first
            )

        def work() -> PreparedSpeech:
            with span("prepare", received.envelope.trace):
                return prepare_speech(self._model, request, look)

        return Deferred(work, children.submit)

    def forget(self, peer: bytes) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Stop the child processes."""
        if self._children is not None:
            self._children.close()

    def _check_count(self, request: Prepare) -> None:
        """Raise `InvalidRequest` for the first item beyond the common limit, or that of its
        modality."""
        counts = Counter[str]()
        for number, item in enumerate(request.items, start=1):
            kind = item.modality.removesuffix("_embeds")
            counts[kind] += 1
            if number > self._max_items:
                raise _too_many(f"{len(request.items)} media parts", self._max_items, item)
            most = self._limits.get(kind, self._max_items)
            if counts[kind] > most:
                raise _too_many(f"{counts[kind]} {kind}s", most, item)


def setup_of(model: Model, config: Config) -> Setup:
    """Configuration of the child processes of a model that takes media."""
    images, videos, audio = model.images, model.videos, model.audio
    clip = VideoLimits(config.max_image_pixels, config.max_video_frames, config.max_video_seconds)
    sound = AudioLimits(config.max_audio_seconds)
    return Setup(
        None if images is None else images.processor,
        config.max_media_bytes,
        config.max_image_pixels,
        config.media_memory,
        model.identity,
        listed(config.allowed_media_domains),
        0 if images is None else images.embeds_width,
        None if videos is None else VideoSetup(videos.processor, clip),
        None if audio is None else AudioSetup(audio.processor, sound, split_of(audio, config)),
    )


def split_of(audio: AudioInput, config: Config) -> SpeechSplit:
    """How recordings are cut. Raises `SettingsError` for parts that the model does not take."""
    processor = audio.processor
    most = processor.chunk_seconds if isinstance(processor, LogMelChunks) else _CLIP_SECONDS
    clip, overlap = config.max_audio_clip_s or most, config.overlap_chunk_second
    if clip > most:
        raise SettingsError(
            f"max_audio_clip_s is {clip}, but this model takes {most} s at a time. Leave it out."
        )
    if overlap >= clip > 1:  # Parts of a second have room for none.
        raise SettingsError(f"overlap_chunk_second is {overlap}; it has to be less than {clip}.")
    return SpeechSplit(clip, min(overlap, clip - 1), config.min_energy_split_window_size)


def serve(config: Config, life: Lifecycle) -> int:
    """Read the model's configuration and serve until the end. Returns the exit code."""
    model = read_model(resolve(config), served_name(config), config.kwargs)
    me = default_name("mm-preprocess")
    info = MediaInfo(model.name, model.modalities)
    hello = Hello("mm-preprocess", me, incarnation(), __version__, media=info)
    standby.wait()
    log.info("serving %s (%s)", model.name, ", ".join(model.modalities) or "text")
    rpc_server.serve(
        Preprocessor(model, config),
        hello,
        MEDIA,
        config,
        life,
        bind=config.bind,
        advertise=config.advertise,
        max_queued_requests=config.max_queued_requests,
    )
    return 0
