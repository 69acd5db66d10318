"""The first token of forced text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baton_worker.structured_output.jump_forward import Spelling, encoder
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.support.tiny_models import save_tokenizer

PIECES = (b"", b"\x02", b"n", b"a", b"na", b"name", b'"', b'name"', b'":', "é".encode(), b"\xc3")


def greedy(text: str) -> list[int]:
    """The longest piece that fits, again and again."""
    data, ids = text.encode(), list[int]()
    while data:
        fit = [i for i, piece in enumerate(PIECES[:7]) if piece and data.startswith(piece)]
        if not fit:
            break
        ids.append(max(fit, key=lambda i: len(PIECES[i])))
        data = data[len(PIECES[ids[-1]]) :]
    return ids


def bits(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    mask = np.zeros(16, np.uint8)
    mask[list(tokens)] = 1
    return np.packbits(mask, bitorder="little")


def first(text: bytes, *allowed: int) -> int:
    return Spelling(Vocabulary(PIECES), greedy).first(text, bits(*allowed))


def test_the_tokenizers_own_spelling() -> None:
    assert first(b'name"', 2, 4, 5) == 5
    assert first(b'ame"', 3) == -1, "it cannot be spelled: there is no m"
    assert first(b"", 2) == -1


def test_what_reaches_beyond_the_known_text_may_be_the_better_token() -> None:
    assert first(b"name", 2, 4, 5, 7) == -1
    assert first(b'name"', 2, 4, 5, 7) == 5
    assert first(b'"', 6, 8) == -1
    assert first(b'"', 6) == 6


def test_characters_that_are_cut_off() -> None:
    assert first(b"na\xc3", 2, 4) == 4
    assert first(b"\xc3", 10) == -1
    assert first(b"\xa9na", 3) == -1
    # The token that is known to come lies behind what is known as text.
    assert first(b"na\xc3", 2, 4, 5) == -1


def test_a_token_that_may_not_come_next_is_not_forced() -> None:
    assert first(b'name"', 2, 4) == -1


def test_it_asks_once() -> None:
    asked = list[str]()

    def encode(text: str) -> list[int]:
        asked.append(text)
        return greedy(text)

    spelling = Spelling(Vocabulary(PIECES), encode)
    for _ in range(3):
        assert spelling.first(b'name"', bits(5)) == 5
    assert asked == ["\x02", '\x02name"']


def test_the_tokenizer_of_a_folder(stories: Path, tmp_path: Path) -> None:
    for path in (stories, save_tokenizer(tmp_path)):
        vocabulary = Vocabulary.read(path, 512)
        encode = encoder(path, vocabulary)
        text = "\x02the little girl"
        assert b"".join(vocabulary.pieces[i] for i in encode(text)).endswith(b"the little girl")
        spelling = Spelling(vocabulary, encode)
        token = spelling.first(b"the little girl", np.full(64, 255, np.uint8))
        assert token >= 0 and b"the little girl".startswith(vocabulary.pieces[token])


@pytest.mark.parametrize("text", ["a", "x y", "<|im_start|>"])
def test_special_tokens_are_not_text(tmp_path: Path, text: str) -> None:
    path = save_tokenizer(tmp_path)
    vocabulary = Vocabulary.read(path, 512)
    token = Spelling(vocabulary, encoder(path, vocabulary))._spell(text)
    assert token == -1 or text.encode().startswith(vocabulary.pieces[token] or b"?")
