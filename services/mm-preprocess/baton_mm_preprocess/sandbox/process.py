"""Child process that decodes untrusted files; see `baton.process.sandbox`.

A request is a URL, its answer an `Outcome`, both in MessagePack.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from baton.errors import InvalidRequest
from baton.process.sandbox import Handler, limit_memory, main
from baton.protocol import Blob
from baton_mm_preprocess.fetch import fetch
from baton_mm_preprocess.image.decode import decode
from baton_mm_preprocess.processors.processed_image import Grid
from baton_mm_preprocess.processors.readers import Processor

_encoder = msgspec.msgpack.Encoder()


class Setup(msgspec.Struct, frozen=True):
    """First message to a child."""

    processor: Processor
    max_bytes: int
    max_pixels: int
    memory: int
    identity: bytes = b""
    """What decides how files are seen, for their digests."""
    allowed_domains: tuple[str, ...] = ()
    """Servers that files may be fetched from."""


class Problem(msgspec.Struct, frozen=True, tag="problem"):
    """Why a file cannot be used."""

    code: str | None
    message: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """What a model takes of an image, and the digest of what it was made from."""

    tensor: Blob
    digest: bytes
    grid: Grid
    num_tokens: int


Outcome = Ready | Problem


def prepare(url: str, setup: Setup) -> Outcome:
    """Decode and preprocess one image."""
    try:
        data = fetch(url, setup.max_bytes, setup.allowed_domains)
        image = setup.processor(decode(data, setup.max_pixels))
    except InvalidRequest as error:
        return Problem(error.code, error.message)
    except MemoryError:
        return Problem(
            "image_too_large",
            "The image needs more memory than this server gives it. Send a smaller one.",
        )
    blob = Blob("float32", image.pixels.shape, image.pixels.astype("<f4").tobytes())
    return Ready(blob, digest(data, setup), image.grid, image.num_tokens)


def digest(data: bytes, setup: Setup) -> bytes:
    """32-byte hash of a file and of what is made of it: equal ones have equal tensors."""
    how = _encoder.encode((setup.processor, setup.identity))
    return sha256(b"%d:%b%b" % (len(how), how, data)).digest()


def build(data: bytes) -> Handler:
    """Return the handler of URLs for one `Setup`."""
    setup = msgspec.msgpack.decode(data, type=Setup)
    limit_memory(setup.memory)
    return lambda request: _encoder.encode(
        prepare(msgspec.msgpack.decode(request, type=str), setup)
    )


if __name__ == "__main__":
    main(build)
