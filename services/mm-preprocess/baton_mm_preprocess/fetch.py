"""Reads media files from `data:` URLs, and from web servers allowed by the operator.

https://www.rfc-editor.org/rfc/rfc2397
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from baton.errors import InvalidRequest
from baton_mm_preprocess.media_errors import EXAMPLES, empty, too_large
from baton_mm_preprocess.remote import download

_HEAD = 256
"""Number of characters that are searched for the comma of a `data:` URL."""
_TYPES = {
    "image": ("image/",),
    "image_embeds": ("application/octet-stream",),
    "video": ("video/", "image/gif"),
    "audio": ("audio/", "video/mp4", "video/webm", "application/ogg"),
}
"""Prefixes of the media types of each modality; a GIF may be a clip, and video containers may
contain only sound."""
_WITH_ARTICLE = {
    "image": "an image",
    "image_embeds": "embeddings",
    "video": "a video",
    "audio": "a sound",
}


def fetch(url: str, most: int, allowed: Sequence[str] = (), kind: str = "image") -> bytes:
    """The file in a URL, of at most `most` bytes.

    Args:
        allowed: hosts that files may be fetched from, see `remote.download`.
        kind: modality of the file, a key of `EXAMPLES`.

    Raises:
        InvalidRequest: it is neither a base64 `data:` URL nor a URL of an allowed host, or the file
            is empty or too large.
    """
    scheme = url[:_HEAD].partition(":")[0].lower()
    if scheme in ("http", "https"):
        if allowed:
            return download(url, most, allowed, kind)
        raise InvalidRequest(
            "This server does not fetch media from other servers. Send the file itself, as "
            f"{EXAMPLES[kind]}",
            code="media_not_allowed",
        )
    if scheme != "data":
        raise InvalidRequest(
            f"Invalid media URL: expected {EXAMPLES[kind]}", code=f"invalid_{kind}_url"
        )
    head, comma, body = url[len("data:") :].partition(",")
    if not comma or len(head) > _HEAD or not head.lower().endswith(";base64"):
        raise _no_base64(f"its head is not like {EXAMPLES[kind].removesuffix('...')}", kind)
    if not head.lower().startswith(_TYPES[kind]):
        raise _no_base64(f"its media type is not one of {_WITH_ARTICLE[kind]}", kind)
    if "\n" in body:  # As `base64` and `base64.encodebytes` wrap their lines.
        body = body.replace("\r", "").replace("\n", "")
    if len(body) // 4 * 3 > most + 3:
        raise too_large(most, kind)
    return _decoded(body, most, kind)


def _decoded(body: str, most: int, kind: str) -> bytes:
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _no_base64("it is not base64", kind) from error
    if not data:
        raise empty(kind)
    if len(data) > most:
        raise too_large(most, kind)
    return data


def _no_base64(why: str, kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid data URL of {_WITH_ARTICLE[kind]}: {why}.", code=f"invalid_base64_{kind}"
    )
