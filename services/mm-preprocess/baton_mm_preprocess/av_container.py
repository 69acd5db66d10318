"""Opens untrusted files with FFmpeg.

The demuxer is named to FFmpeg: some demuxers (playlists, lists of files) would open other files.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import av

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
        # Titles and names of authors are often in older encodings; nobody reads them here.
        with av.open(
            io.BytesIO(data), format=demuxer, options=options, metadata_errors="ignore"
        ) as container:
            yield container
    except MemoryError as error:
        raise exceeds(kind, "needs more memory than this server gives it") from error
    except av.FFmpegError as error:
        raise damaged(kind) from error
