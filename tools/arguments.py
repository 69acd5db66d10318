"""Types of command-line arguments; argparse reports their errors with exit code 2."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def existing_path(text: str) -> Path:
    """An existing file or folder."""
    path = Path(text)
    if not path.exists():
        raise ArgumentTypeError(f"{path} does not exist")
    return path


def new_folder(text: str) -> Path:
    """A folder that is made unless it exists."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ArgumentTypeError(f"{path} is no folder")
    return path


def positive_int(text: str) -> int:
    """A size or a count."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"'{text}' is not a positive integer")
    return int(text)
