"""Reads media files from `data:` URLs, and from the web servers that the operator has allowed.

https://www.rfc-editor.org/rfc/rfc2397
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from baton.errors import InvalidRequest
from baton_mm_preprocess.remote import download

_HEAD = 256
"""Number of characters searched for the comma of a `data:` URL."""


def fetch(url: str, most: int, allowed: Sequence[str] = ()) -> bytes:
    """The file in a URL, of at most `most` bytes.

    Args:
        allowed: hosts that files may be fetched from, see `remote.download`.

    Raises:
        InvalidRequest: it is no base64 `data:` URL and leads to none of these, is empty, or is too
            large.
    """
    scheme = url[:_HEAD].partition(":")[0].lower()
    if scheme in ("http", "https"):
        if allowed:
            return download(url, most, allowed)
        raise InvalidRequest(
            "This server does not fetch media from other servers. Send the file itself, as "
            "data:image/png;base64,...",
            code="media_not_allowed",
        )
    if scheme != "data":
        raise InvalidRequest(
            "Invalid media URL: expected data:image/png;base64,...", code="invalid_image_url"
        )
    head, comma, body = url[len("data:") :].partition(",")
    if not comma or len(head) > _HEAD or not head.lower().endswith(";base64"):
        raise _no_base64("its head is not like data:image/png;base64,")
    if not head.lower().startswith("image/"):
        raise _no_base64("its media type is not one of an image")
    if len(body) // 4 * 3 > most + 3:
        raise too_large(most)
    return _decoded(body, most)


def _decoded(body: str, most: int) -> bytes:
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _no_base64("it is not base64") from error
    if not data:
        raise InvalidRequest("The image file is empty.", code="empty_image_file")
    if len(data) > most:
        raise too_large(most)
    return data


def too_large(most: int) -> InvalidRequest:
    """The error of a file with more than so many bytes."""
    return InvalidRequest(
        f"The image is larger than the {most} bytes that this server takes. Send a smaller one.",
        code="image_too_large",
    )


def _no_base64(why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid data URL of an image: {why}.", code="invalid_base64_image")
