"""Opens untrusted files with FFmpeg.

FFmpeg is restricted to one demuxer: some demuxers (playlists, lists of files) would open other
files.
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
    """FFmpeg's container of a file, as a context. Its errors become `InvalidRequest`, also within
    the context.

    Args:
        demuxer: FFmpeg's name of the container.
        codecs: FFmpeg's names of the decoders that may probe streams; the caller checks which
            decoder a stream needs.
        kind: modality of the file, for errors.
    """
    options = {"protocol_whitelist": "none", "codec_whitelist": ",".join(sorted(codecs))}
    try:
        # Metadata such as titles may be in older encodings; it is not used.
        with av.open(
            io.BytesIO(data), format=demuxer, options=options, metadata_errors="ignore"
        ) as container:
            yield container
    except MemoryError as error:
        raise exceeds(kind, "needs more memory than this server gives it") from error
    except av.FFmpegError as error:
        raise damaged(kind) from error


def first_stream(
    container: Any, kind: Literal["audio", "video"], codecs: Set[str], encodings: str
) -> Any:
    """The first stream of a kind, decoded in the calling thread.

    Args:
        codecs: FFmpeg's names of the allowed decoders.
        what: the encodings of these decoders, for errors.

    Raises:
        InvalidRequest: there is none, or it needs another decoder.
    """
    code = f"invalid_{kind}_format"
    streams = getattr(container.streams, kind)
    if not streams:
        raise InvalidRequest(f"The file holds no {kind}.", code=code)
    context = streams[0].codec_context
    if context is None or context.name not in codecs:
        raise InvalidRequest(
            f"The {kind} is encoded as {context.name if context else 'an unknown format'}, which "
            f"this server does not decode. Send it as {encodings}.",
            code=code,
        )
    streams[0].thread_type = "NONE"
    return streams[0]
