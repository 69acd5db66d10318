"""Opens untrusted files with FFmpeg.

The demuxer is named to FFmpeg: some demuxers (playlists, lists of files) would open other files.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any, Literal

import av

from baton.errors import InvalidRequest
from baton_mm_preprocess.media_errors import damaged, exceeds


@contextmanager
def opened(data: bytes, demuxer: str, codecs: Iterable[str], kind: str) -> Iterator[Any]:
    """FFmpeg's container of a file. Its errors become `InvalidRequest`, in the block too.

    Args:
        demuxer: FFmpeg's name of the container.
        codecs: FFmpeg's names of the decoders that may look into streams; which one decodes a
            stream is for the caller to check.
        kind: modality of the file, for errors.
    """
    options = {"protocol_whitelist": "none", "codec_whitelist": ",".join(sorted(codecs))}
    try:
        # Titles and names of authors are often in older encodings; they are not read here.
        with av.open(
            io.BytesIO(data), format=demuxer, options=options, metadata_errors="ignore"
        ) as container:
            yield container
    except MemoryError as error:
        raise exceeds(kind, "needs more memory than this server gives it") from error
    except av.FFmpegError as error:
        raise damaged(kind) from error


def first_stream(
    container: Any, kind: Literal["audio", "video"], codecs: Set[str], what: str
) -> Any:
    """The first stream of a kind, decoded by the thread that reads it.

    Args:
        codecs: FFmpeg's names of the decoders that are allowed.
        what: the encodings that these decode, for errors.

    Raises:
        InvalidRequest: there is none, or another decoder is wanted.
    """
    code = f"invalid_{kind}_format"
    streams = getattr(container.streams, kind)
    if not streams:
        raise InvalidRequest(f"The file holds no {kind}.", code=code)
    context = streams[0].codec_context
    if context is None or context.name not in codecs:
        raise InvalidRequest(
            f"The {kind} is encoded as {context.name if context else 'an unknown format'}, which "
            f"this server does not decode. Send it as {what}.",
            code=code,
        )
    streams[0].thread_type = "NONE"
    return streams[0]
