"""Small clips, encoded here."""

from __future__ import annotations

import base64
import io
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.uint8]
"""[frames, height, width, 3]."""


def moving(count: int, height: int, width: int, seed: int = 0) -> Frames:
    """A bright square that wanders over a coloured ramp."""
    rows, columns = np.mgrid[0:height, 0:width]
    frames = np.zeros((count, height, width, 3), np.uint8)
    for number, frame in enumerate(frames):
        frame[..., 0] = rows * 255 // height
        frame[..., 1] = (columns + 7 * number + 40 * seed) % 256
        top, left = (number * 5 + 11 * seed) % (height // 2), (number * 3) % (width // 2)
        frame[top : top + height // 3, left : left + width // 3] = 255 - 30 * seed
    return frames


def encoded(
    frames: Frames,
    *,
    fps: Fraction | int = 8,
    codec: str = "libx264",
    form: str = "mp4",
    sound: Any = None,
    sound_codec: str = "pcm_s16le",
) -> bytes:
    """A file of these frames, and of a `sound` at 16 kHz, float32 [samples]."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=fps)
        heard: Any = None
        if sound is not None:
            heard = container.add_stream(sound_codec, rate=16_000)
            heard.layout = "mono"
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
        if heard is not None:
            _add_sound(container, heard, sound)
    return out.getvalue()


def _add_sound(container: Any, stream: Any, sound: Any) -> None:
    import av

    frame = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
    frame.sample_rate, frame.pts = 16_000, 0
    for packet in [*stream.encode(frame), *stream.encode(None)]:
        container.mux(packet)


def decoded(data: bytes) -> Frames:
    """Every frame of a file."""
    import av

    with av.open(io.BytesIO(data)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def data_url(data: bytes, media_type: str = "video/mp4") -> str:
    """A `data:` URL of a file."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
