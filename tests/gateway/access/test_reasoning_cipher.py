"""Encryption of thinking."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from baton_gateway.access.reasoning_cipher import ReasoningCipher, cipher_of

TEXT = "Grüße, 🫠"


def test_only_its_owner_can_hand_it_back() -> None:
    cipher = ReasoningCipher(b"secret")
    sealed = cipher.encrypt(TEXT, "me")
    assert TEXT not in sealed and sealed == cipher.encrypt(TEXT, "me")
    assert cipher.decrypt(sealed, "me") == TEXT
    flipped = sealed[:-2] + ("A" if sealed[-2] != "A" else "B") + sealed[-1]
    others = [(ReasoningCipher(b"other"), sealed, "me"), (cipher, sealed, "you")]
    others += [
        (cipher, text, "me") for text in (flipped, sealed[:-4], "", "é", "AAAA", "no base64")
    ]
    for one, text, owner in others:
        with pytest.raises(ValueError, match="not made here"):
            one.decrypt(text, owner)


def test_gateways_share_the_secret_of_the_run_directory(tmp_path: Path) -> None:
    sealed = cipher_of("", tmp_path / "run").encrypt(TEXT, "me")
    cipher_of.cache_clear()
    assert cipher_of("", tmp_path / "run").decrypt(sealed, "me") == TEXT
    [file] = (tmp_path / "run").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_bytes()) == 32
    given = cipher_of("a secret of the operator", tmp_path / "none")
    assert given.decrypt(given.encrypt(TEXT, ""), "") == TEXT
    assert not (tmp_path / "none").exists()
