"""Errors of files, which name their modality: "image", "image_embeds", "video" or "audio"."""

from __future__ import annotations

from baton.errors import InvalidRequest

EXAMPLES = {
    "image": "data:image/png;base64,...",
    "image_embeds": "data:application/octet-stream;base64,...",
    "video": "data:video/mp4;base64,...",
    "audio": "data:audio/wav;base64,...",
}
"""Example of a `data:` URL."""


def too_large(most: int, kind: str) -> InvalidRequest:
    """Error for a file with more than this number of bytes; for a sound with the status of OpenAI's
    API."""
    return InvalidRequest(
        f"The {kind} is larger than the {most} bytes that this server takes. Send a smaller one.",
        code=f"{kind}_too_large",
        status=413 if kind == "audio" else None,
    )


def empty(kind: str) -> InvalidRequest:
    """Error for an empty file."""
    return InvalidRequest(f"The {kind} file is empty.", code=f"empty_{kind}_file")


def exceeds(kind: str, how: str) -> InvalidRequest:
    """Error for a file whose content exceeds a limit."""
    return InvalidRequest(f"The {kind} {how}. Send a smaller one.", code=f"{kind}_too_large")


def damaged(kind: str) -> InvalidRequest:
    """Error for a file that cannot be decoded."""
    return InvalidRequest(
        f"The {kind} cannot be read: the file is damaged or cut off.", code=f"{kind}_parse_error"
    )
