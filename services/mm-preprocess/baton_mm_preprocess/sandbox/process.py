"""Child process that decodes untrusted files; see `baton.process.sandbox`.

A request is a `Source`, its answer an `Outcome`, both in MessagePack.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
import numpy as np
import numpy.typing as npt

from baton.errors import InvalidRequest
from baton.process.sandbox import Handler, limit_memory, main
from baton.protocol import Blob
from baton.protocol.media import MAX_PIXEL_BYTES
from baton_mm_preprocess.audio.decode import AudioLimits, decode_track
from baton_mm_preprocess.audio.decode import decode as decode_audio
from baton_mm_preprocess.audio.readers import AudioProcessor
from baton_mm_preprocess.audio.spectrum import Samples
from baton_mm_preprocess.audio.speech_split import SpeechSplit
from baton_mm_preprocess.fetch import fetch
from baton_mm_preprocess.image.decode import decode
from baton_mm_preprocess.image.embeddings import read_embeddings
from baton_mm_preprocess.processors.any_processor import Processor, among
from baton_mm_preprocess.processors.processed_image import Grid
from baton_mm_preprocess.video.decode import VideoLimits, demuxer, probe
from baton_mm_preprocess.video.processed_clip import ClipTimes
from baton_mm_preprocess.video.readers import VideoProcessor

MAX_RECORDING = 32 * 1024 * 1024
"""Maximum bytes of a recording; the gateway has its own, lower limit."""
_encoder = msgspec.msgpack.Encoder()


class VideoSetup(msgspec.Struct, frozen=True):
    """Processing of clips."""

    processor: VideoProcessor
    limits: VideoLimits


class AudioSetup(msgspec.Struct, frozen=True):
    """Processing of sounds."""

    processor: AudioProcessor
    limits: AudioLimits
    split: SpeechSplit


class Setup(msgspec.Struct, frozen=True):
    """First message to a child."""

    processor: Processor | None
    """Processing of images; None if the model does not accept them."""
    max_bytes: int
    max_pixels: int
    memory: int
    identity: bytes = b""
    """Everything that determines the tensors of files, for their digests."""
    allowed_domains: tuple[str, ...] = ()
    """Hosts from which files may be fetched."""
    width: int = 0
    """Hidden size of the model; 0 if it does not accept embeddings."""
    video: VideoSetup | None = None
    """Processing of clips; None if the model does not accept them."""
    audio: AudioSetup | None = None
    """Processing of sounds; None if the model does not accept them."""


class Source(msgspec.Struct, frozen=True):
    """Request to a child."""

    url: str
    modality: str = "image"
    """"image", "image_embeds", "video" or "audio"."""
    images: int = 1
    """Number of images of the request that this one belongs to."""
    first_chunk: int = -1
    """First requested chunk of a recording that is split into chunks; -1 if the file is one
    item."""
    sound: bool = False
    """Whether the sound of a video is requested too."""


class Problem(msgspec.Struct, frozen=True, tag="problem"):
    """Why a file cannot be used."""

    code: str | None
    message: str
    status: int = 400
    """HTTP status."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tensor of a file, and the digest of its input."""

    tensor: Blob
    digest: bytes
    grid: Grid
    num_tokens: int
    times: ClipTimes | None = None
    """Times of a clip's frames; None for an image."""
    sound: Ready | None = None
    """Sound of a clip, if requested and present."""


class ReadySpeech(msgspec.Struct, frozen=True, tag="speech"):
    """Chunks of a recording, as many as fit into a message."""

    chunks: tuple[Ready, ...]
    starts: tuple[float, ...]
    """Seconds at which they begin."""
    num_chunks: int
    """Number of chunks of the recording."""
    seconds: float
    """Length of the recording."""
    settled: float
    """Lower bound, in seconds, of the end of the last chunk, whatever audio follows."""


Outcome = Ready | ReadySpeech | Problem


def prepare(source: Source, setup: Setup) -> Outcome:
    """Decode and preprocess one file."""
    kind = source.modality
    try:
        if source.first_chunk >= 0:
            return _speech(fetch(source.url, MAX_RECORDING, (), kind), source.first_chunk, setup)
        data = fetch(source.url, setup.max_bytes, setup.allowed_domains, kind)
        if kind == "image_embeds":
            return _embeddings(data, setup)
        if kind == "audio":
            return _audio(data, setup)
        return _video(data, source, setup) if kind == "video" else _image(data, source, setup)
    except InvalidRequest as error:
        return Problem(error.code, error.message, error.status)
    except MemoryError:
        return Problem(
            f"{kind}_too_large",
            f"The {kind} needs more memory than this server gives it. Send a smaller one.",
        )


def _image(data: bytes, source: Source, setup: Setup) -> Ready:
    assert setup.processor is not None, "the model has been checked"
    processor = among(setup.processor, source.images)
    image = processor(decode(data, setup.max_pixels))
    name = digest(data, (processor, setup.identity))
    return Ready(_blob(image.pixels), name, image.grid, image.num_tokens)


def _embeddings(data: bytes, setup: Setup) -> Ready:
    embeddings = read_embeddings(data, setup.width)
    name = digest(data, ("image_embeds", setup.identity))
    return Ready(_blob(embeddings), name, (1, 1, 1), len(embeddings))


def _video(data: bytes, source: Source, setup: Setup) -> Ready:
    video = setup.video
    assert video is not None, "the model has been checked"
    clip = video.processor(probe(data, video.limits))
    name = digest(data, (video.processor, setup.identity))
    sound = _track(data, setup) if source.sound else None
    return Ready(_blob(clip.pixels), name, clip.grid, clip.num_tokens, clip.times, sound)


def _track(data: bytes, setup: Setup) -> Ready | None:
    audio = setup.audio
    assert audio is not None, "the model has been checked"
    samples = decode_track(data, demuxer(data), audio.processor.rate, audio.limits)
    return None if samples is None else _heard(data, samples, audio, setup)


def _audio(data: bytes, setup: Setup) -> Ready:
    audio = setup.audio
    assert audio is not None, "the model has been checked"
    samples = decode_audio(data, audio.processor.rate, audio.limits)
    return _heard(data, samples, audio, setup)


def _heard(data: bytes, samples: Samples, audio: AudioSetup, setup: Setup) -> Ready:
    sound, name = audio.processor(samples), digest(data, (audio.processor, setup.identity))
    return Ready(_blob(sound.features), name, sound.grid, sound.num_tokens)


def _speech(data: bytes, first: int, setup: Setup) -> ReadySpeech:
    audio = setup.audio
    assert audio is not None, "the model has been checked"
    samples = decode_audio(data, audio.processor.rate, audio.limits)
    parts = list(audio.split(samples, audio.processor.rate))
    chunks, left = list[Ready](), MAX_PIXEL_BYTES
    for _, part in parts[first:]:
        chunk = _heard(part.tobytes(), part, audio, setup)
        left -= chunk.tensor.num_bytes
        if left < 0 and chunks:
            break
        chunks.append(chunk)
    starts = tuple(start / audio.processor.rate for start, _ in parts[first:])
    seconds = len(samples) / audio.processor.rate
    settled = min(seconds, starts[-1] + audio.split.shortest)
    return ReadySpeech(tuple(chunks), starts[: len(chunks)], len(parts), seconds, settled)


def _blob(pixels: npt.NDArray[np.float32]) -> Blob:
    return Blob("float32", pixels.shape, pixels.astype("<f4").tobytes())


def digest(data: bytes, how: object) -> bytes:
    """32-byte hash of a file and its processing: equal hashes mean equal tensors."""
    settings = _encoder.encode(how)
    return sha256(b"%d:%b%b" % (len(settings), settings, data)).digest()


def build(data: bytes) -> Handler:
    """Return the handler of sources for one `Setup`."""
    setup = msgspec.msgpack.decode(data, type=Setup)
    limit_memory(setup.memory)
    return lambda request: _encoder.encode(
        prepare(msgspec.msgpack.decode(request, type=Source), setup)
    )


if __name__ == "__main__":
    main(build)
