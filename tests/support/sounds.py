"""Small sounds, made and encoded here."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

Sound = npt.NDArray[np.float32]


def tones(seconds: float, rate: int = 16_000, *, seed: int = 0, top: float = 3000.0) -> Sound:
    """A chord of 12 tones up to `top` Hz that grows and fades, float32 [samples]."""
    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * rate)) / rate
    pitches = np.linspace(100.0 + 20 * seed, top, 12)
    waves = [
        np.sin(2 * np.pi * pitch * times + phase)
        for pitch, phase in zip(pitches, random.random(12) * 6, strict=True)
    ]
    loudness = 0.6 + 0.4 * np.sin(2 * np.pi * times)
    return (np.sum(waves, axis=0) / 12 * loudness).astype(np.float32)


def encoded(
    planes: Sound,
    rate: int = 16_000,
    *,
    codec: str = "pcm_s16le",
    form: str = "wav",
    layout: str = "mono",
) -> bytes:
    """A file of these samples, [samples] or [channels, samples]."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.layout = layout
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(np.atleast_2d(planes)), format="fltp", layout=layout
        )
        frame.sample_rate, frame.pts = rate, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return out.getvalue()


def data_url(file: bytes, form: str = "wav") -> str:
    """The `data:` URL of a file."""
    return f"data:audio/{form};base64,{base64.b64encode(file).decode()}"
