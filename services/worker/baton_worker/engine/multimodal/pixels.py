"""Pixels of a media item: out of its message, or out of shared memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton.errors import BatonError
from baton.process.pixel_store import PixelsGone, take
from baton.protocol import Blob

Pixels = npt.NDArray[np.float32]
"""What the encoder takes of one item; of an image of fixed size [channels, height, width]."""


class PixelsError(BatonError):
    """The pixels do not fit their shape."""


class PixelsMissing(PixelsError):
    """The pixels are gone."""


def open_pixels(blob: Blob) -> Pixels:
    """The tensor of a blob, read-only and without a copy.

    Raises:
        PixelsError: its bytes do not fit its shape.
        PixelsMissing: it is in no memory that this process reaches.
    """
    if not blob.token:
        if len(blob.data) != blob.num_bytes:
            raise PixelsError("the pixels of a media item are cut off")
        return np.frombuffer(blob.data, "<f4").reshape(blob.shape)
    try:
        mapped = take(blob.address, blob.token, blob.num_bytes)
    except PixelsGone as error:
        raise PixelsMissing(
            f"the pixels of a media item are not on this host: {error}. Where gateways and workers "
            "do not share a run directory, start gateways with --mm-tensor-ipc direct_rpc"
        ) from error
    except OSError as error:
        raise PixelsError(f"the pixels of a media item cannot be read: {error}") from error
    return np.frombuffer(mapped, "<f4").reshape(blob.shape)
