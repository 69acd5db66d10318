"""Reading of media URLs, and error codes of refused ones."""

from __future__ import annotations

import base64

import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess.fetch import fetch

MOST = 100


def url(data: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "head",
    [
        "data:image/png;base64,",
        "DATA:image/JPEG;BASE64,",
        "data:image/x-anything;name=a.png;base64,",
    ],
)
def test_the_bytes_of_a_data_url(head: str) -> None:
    assert fetch(url(bytes(range(100)), head), MOST) == bytes(range(100))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_that_are_wrapped(end: bytes) -> None:
    wrapped = base64.encodebytes(bytes(range(100))).replace(b"\n", end).decode()
    assert fetch(f"data:image/png;base64,{wrapped}", MOST) == bytes(range(100))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("http://127.0.0.1/a.png", "media_not_allowed"),
        ("HTTPS://example.org/a.png", "media_not_allowed"),
        ("file:///etc/passwd", "invalid_image_url"),
        ("ftp://example.org/a.png", "invalid_image_url"),
        ("javascript:alert(1)", "invalid_image_url"),
        ("//example.org/a.png", "invalid_image_url"),
        ("/etc/passwd", "invalid_image_url"),
        ("", "invalid_image_url"),
        ("x" * 10_000, "invalid_image_url"),
        ("data:", "invalid_base64_image"),
        ("data:image/png,abc", "invalid_base64_image"),
        ("data:image/png;base64", "invalid_base64_image"),
        ("data:text/html;base64,aGk=", "invalid_base64_image"),
        ("data:;base64,aGk=", "invalid_base64_image"),
        ("data:image/png;" + "x" * 1000 + ";base64,aGk=", "invalid_base64_image"),
        ("data:image/png;base64,aGk", "invalid_base64_image"),
        ("data:image/png;base64,a Gk=", "invalid_base64_image"),
        ("data:image/png;base64,äGk=", "invalid_base64_image"),
        ("data:image/png;base64,", "empty_image_file"),
        (url(bytes(101)), "image_too_large"),
        (url(bytes(10_000)), "image_too_large"),
    ],
)
def test_what_is_refused(given: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fetch(given, MOST)
    assert (caught.value.status, caught.value.code) == (400, code)
    assert len(caught.value.message) < 200 and "passwd" not in caught.value.message
