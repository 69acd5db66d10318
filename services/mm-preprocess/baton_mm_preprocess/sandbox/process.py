"""Child process that decodes untrusted files; see `baton.process.sandbox`.

A request is a URL, its answer an `Outcome`, both in MessagePack.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from baton.errors import InvalidRequest
from baton.process.sandbox import Handler, limit_memory, main
from baton.protocol import Blob
from baton_mm_preprocess.fetch import fetch
from baton_mm_preprocess.image.decode import decode
from baton_mm_preprocess.image.processor import Processor

_encoder = msgspec.msgpack.Encoder()


class Setup(msgspec.Struct, frozen=True):
    """First message to a child."""

    processor: Processor
    max_bytes: int
    max_pixels: int
    memory: int


class Problem(msgspec.Struct, frozen=True, tag="problem"):
    """Why a file cannot be used."""

    code: str | None
    message: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A tensor and its 16-byte hash."""

    tensor: Blob
    digest: bytes


Outcome = Ready | Problem


def prepare(url: str, setup: Setup) -> Outcome:
    """Decode and preprocess one image."""
    try:
        image = decode(fetch(url, setup.max_bytes), setup.max_pixels)
        tensor = setup.processor(image)
    except InvalidRequest as error:
        return Problem(error.code, error.message)
    except MemoryError:
        return Problem(
            "image_too_large",
            "The image needs more memory than this server gives it. Send a smaller one.",
        )
    blob = Blob("float32", tensor.shape, tensor.astype("<f4").tobytes())
    return Ready(blob, digest(blob))


def digest(blob: Blob) -> bytes:
    """16-byte hash of dtype, shape and content."""
    head = _encoder.encode((blob.dtype, blob.shape))
    return blake2b(head + blob.data, digest_size=16).digest()


def build(data: bytes) -> Handler:
    """Return the handler of URLs for one `Setup`."""
    setup = msgspec.msgpack.decode(data, type=Setup)
    limit_memory(setup.memory)
    return lambda request: _encoder.encode(
        prepare(msgspec.msgpack.decode(request, type=str), setup)
    )


if __name__ == "__main__":
    main(build)
