"""Pixels of a media item: out of its message, out of shared memory, or from another host."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from baton.errors import BatonError
from baton.process.pixel_store import PixelsGone, take
from baton.protocol import Blob
from baton_worker.engine.multimodal.remote_pixels import fetch

Pixels = npt.NDArray[np.float32]
"""The encoder's input of one item; of an image of fixed size [channels, height, width]."""


class PixelsError(BatonError):
    """The pixels do not fit their shape."""


class PixelsMissing(PixelsError):
    """The pixels are gone."""


def open_pixels(blob: Blob) -> Pixels:
    """The tensor of a blob, read-only; without a copy, if it is on this host.

    Raises:
        PixelsError: its bytes do not fit its shape.
        PixelsMissing: no process that has it can be reached.
    """
    if not blob.token:
        if len(blob.data) != blob.num_bytes:
            raise PixelsError("the pixels of a media item are cut off")
        return np.frombuffer(blob.data, "<f4").reshape(blob.shape)
    try:
        data = _read(blob)
    except PixelsGone as error:
        raise PixelsMissing(
            f"the pixels of a media item are not on this host: {error}. Where gateways and workers "
            "do not share a run directory, start gateways with --bind-pixels"
        ) from error
    except OSError as error:
        raise PixelsError(f"the pixels of a media item cannot be read: {error}") from error
    if len(data) != blob.num_bytes:
        raise PixelsError("the pixels of a media item are cut off")
    return np.frombuffer(data, "<f4").reshape(blob.shape)


def _read(blob: Blob) -> mmap.mmap | bytes:
    """The bytes of a handle: from shared memory, or else from the host that has them."""
    try:
        return take(blob.address, blob.token, blob.num_bytes)
    except PixelsGone:
        if not blob.remote:
            raise
    return fetch(blob.remote, blob.token)
