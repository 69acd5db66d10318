"""Decoding of untrusted images, and error codes of refused ones."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from baton.errors import InvalidRequest
from baton_mm_preprocess.image import decode as module
from baton_mm_preprocess.image.decode import decode
from tests.support.tiny_dual_encoders import picture

MOST = 50_000_000


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pixels(image: Image.Image) -> np.ndarray[Any, Any]:
    assert image.mode == "RGB"
    return np.asarray(image)


def refusal(data: bytes, most: int = MOST) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        decode(data, most)
    assert caught.value.status == 400 and "0x" not in caught.value.message
    return caught.value.code


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_formats(kind: str) -> None:
    data = file(picture(40, 30), kind)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(pixels(decode(data, MOST)), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_images_stand_upright(orientation: int, kind: str) -> None:
    """The eight ways in which a camera may be held."""
    turned = {1: 0, 2: 0, 3: 2, 4: 2, 5: 3, 6: 3, 7: 1, 8: 1}[orientation]
    expected = np.rot90(np.asarray(picture(24, 16).resize((48, 32), 0)), turned)
    if orientation in (2, 4):
        expected = np.fliplr(expected)
    if orientation in (5, 7):
        expected = np.fliplr(expected)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    stored = picture(24, 16).resize((48, 32), 0)
    found = decode(file(stored, kind, exif=exif, **options.get(kind, {})), MOST)
    off = np.abs(pixels(found).astype(int) - expected.astype(int))
    assert off.max() <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in transformers, and in bands that are not even."""
    from transformers.image_transforms import convert_to_rgb

    monkeypatch.setattr(module, "_BAND", 100)
    image = picture(33, 20).convert("RGBA")
    image.putalpha(
        Image.fromarray(np.arange(660, dtype=np.uint32).astype(np.uint8).reshape(20, 33))
    )
    options: dict[str, Any] = {}
    if mode == "P":
        image, options = picture(33, 20).convert("P"), {"transparency": 3}
    data = file(image.convert(mode), **options)
    expected = convert_to_rgb(Image.open(io.BytesIO(data)), return_numpy=True)
    assert np.array_equal(pixels(decode(data, MOST)), expected)
    clear = Image.new("RGBA", (2, 2), (9, 9, 9, 0))
    assert (pixels(decode(file(clear), MOST)) == 255).all()


def test_sixteen_bits_keep_the_upper_eight() -> None:
    """Pillow's own conversion would make all of this white."""
    deep = np.linspace(0, 65_535, 300).astype(np.uint16).reshape(10, 30)
    found = pixels(decode(file(Image.fromarray(deep)), MOST))
    assert np.array_equal(found[..., 0], deep >> 8) and np.array_equal(found[..., 2], deep >> 8)


def test_cmyk_one_bit_and_grey() -> None:
    colour = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red = pixels(decode(file(colour, "JPEG", quality=100), MOST))[0, 0]
    assert red[0] > 240 and red[1] < 15 and red[2] < 15
    assert (pixels(decode(file(Image.new("1", (3, 3), 1)), MOST)) == 255).all()
    assert (pixels(decode(file(Image.new("L", (3, 3), 77)), MOST)) == 77).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (200, 1), (3, 3)])
def test_small_images(size: tuple[int, int]) -> None:
    assert decode(file(picture(*size)), MOST).size == size


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_an_animation_counts_as_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in (0, 200, 90)]
    data = file(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert (pixels(decode(data, MOST)) == 0).all()


def test_animations_have_an_end() -> None:
    frames = [Image.new("L", (2, 2), i % 2 * 255) for i in range(257)]
    data = file(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=10)
    assert refusal(data) == "image_too_large"
    data = file(frames[0], "GIF", save_all=True, append_images=frames[1:256], duration=10)
    assert decode(data, MOST).size == (2, 2)


def png(width: int, height: int, data: bytes = b"", kind: bytes = b"") -> bytes:
    """A PNG file whose head says what it likes, with a chunk before the pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = zlib.crc32(name + body)
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    extra = chunk(kind, data) if kind else b""
    rows = zlib.compress(b"\0" * 64)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", rows)
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (png(20_000, 20_000), "image_too_large"),
        (png(9_000, 9_000), "image_too_large"),
        (png(1, 80_000_000), "image_too_large"),
        (png(16_385, 1_000), "image_too_large"),
        (png(1, 201), "image_too_large"),
        (png(0, 1), "image_parse_error"),
        (png(40, 40), "image_parse_error"),
        (png(4, 4, b"a\0\0" + zlib.compress(b"x" * 100_000_000), b"zTXt"), "image_parse_error"),
        (file(picture(40, 30))[:-200], "image_parse_error"),
        (file(picture(40, 30), "JPEG")[:-200], "image_parse_error"),
        (file(picture(40, 30), "WEBP")[:-200], "image_parse_error"),
        (file(picture(40, 30))[:20], "image_parse_error"),
        (file(picture(40, 30)).replace(b"IDAT", b"IDAX"), "image_parse_error"),
        (b"<html></html>", "invalid_image_format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "invalid_image_format"),
        (b"%PDF-1.7", "invalid_image_format"),
        (file(picture(8, 8), "EPS"), "invalid_image_format"),
        (file(picture(8, 8), "TIFF"), "invalid_image_format"),
        (file(picture(8, 8), "BMP"), "invalid_image_format"),
        (file(picture(32, 32), "ICO"), "invalid_image_format"),
        (b"\0", "invalid_image_format"),
    ],
)
def test_what_is_refused(data: bytes, code: str) -> None:
    assert refusal(data) == code


def test_the_limit_on_pixels_is_a_setting() -> None:
    assert refusal(file(picture(40, 30)), 1199) == "image_too_large"
    assert decode(file(picture(40, 30)), 1200).size == (40, 30)


def test_a_damaged_note_beside_the_pixels_is_nobodys_concern() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0" + b"\xff" * 400
    data = file(picture(16, 8), "JPEG", exif=exif)
    assert np.array_equal(
        pixels(decode(data, MOST)), pixels(decode(file(picture(16, 8), "JPEG"), MOST))
    )


def test_memory_that_runs_out_is_a_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def out(image: Image.Image) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(module, "rgb", out)
    assert refusal(file(picture(16, 16))) == "image_too_large"
