"""Decodes untrusted image files to pixels, as a browser shows them.

The format is detected from the bytes, not from the media type. Limits are checked against the
file's header before any pixel is decoded.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from baton.errors import InvalidRequest
from baton_mm_preprocess.media_errors import damaged, exceeds

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_SIDE = 16_384
"""Maximum pixels of a side."""
MAX_ASPECT = 200
"""Maximum ratio of the longer to the shorter side."""
MAX_FRAMES = 256
"""Maximum frames of an animation; only its first frame is used."""
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I")
"""Pillow's modes of one channel with 16 bits."""

_BAND = 1_000_000
"""Maximum pixels in total."""

Image.MAX_IMAGE_PIXELS = None  # `decode` has its own limit and raises, while Pillow only warns.


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """Decode an image to upright RGB, with transparency on white.

    Raises:
        InvalidRequest: it is not one of `FORMATS`, is damaged, or exceeds a limit.
    """
    with warnings.catch_warnings():
        # Pillow's warnings, for example of damaged metadata, are harmless.
        warnings.simplefilter("ignore")
        with _opened(data) as image:
            _check(image, max_pixels)
            return _loaded(image)


def _opened(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:  # Plug-ins raise arbitrary exceptions for invalid files.
        raise _unreadable(data) from error


def _loaded(image: Image.Image) -> Image.Image:
    try:
        if getattr(image, "n_frames", 1) > MAX_FRAMES:
            raise _large(f"has more than {MAX_FRAMES} frames")
        image.load()
        return rgb(ImageOps.exif_transpose(image))
    except InvalidRequest:
        raise
    except MemoryError as error:
        raise _large("needs more memory than this server gives it") from error
    except Exception as error:  # As above, once its pixels are read.
        raise _damaged() from error


def _check(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise _damaged()
    if max(width, height) > MAX_SIDE:
        raise _large(f"has a side of more than {MAX_SIDE} pixels")
    if width * height > max_pixels:
        raise _large(f"has more than {max_pixels} pixels")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise _large(f"is more than {MAX_ASPECT} times as long as it is wide")


def rgb(image: Image.Image) -> Image.Image:
    """Convert to three channels of 8 bits. Transparent pixels are composited on white, as in
    transformers."""
    if image.mode in _DEEP:
        return _shallow(image)
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Composite band by band, since four channels of the complete image would need more memory."""
    composed = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", band.size, (255, 255, 255, 255))
        composed.paste(Image.alpha_composite(white, band).convert("RGB"), (0, top))
    return composed


def _shallow(image: Image.Image) -> Image.Image:
    """The upper 8 of 16 bits; Pillow would clip every value at 255."""
    upper = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
    return Image.fromarray(upper).convert("RGB")


def _large(how: str) -> InvalidRequest:
    return exceeds("image", how)


def _damaged() -> InvalidRequest:
    return damaged("image")


_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


def _unreadable(data: bytes) -> InvalidRequest:
    """Error for a damaged file of a known format, or a file of an unknown format."""
    if data.startswith(_MAGIC) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        return _damaged()
    return InvalidRequest(
        "You uploaded an unsupported image. Please make sure your image has one of the following "
        "formats: ['png', 'jpeg', 'gif', 'webp'].",
        code="invalid_image_format",
    )
