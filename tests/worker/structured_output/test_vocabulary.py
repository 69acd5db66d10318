"""The bytes of tokens, against the tokenizer service, which reads the same checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_tokenizer.vocabulary.load import load
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.support.tiny_models import VOCAB_SIZE, save_tokenizer


def assert_equal(path: Path, spare: int = 0) -> None:
    vocab = load(path)
    size = len(vocab.pieces) + spare
    found = Vocabulary.read(path, size).pieces
    assert len(found) == size and not any(found[len(vocab.pieces) :])
    wanted = [b"" if i in vocab.special_ids else piece for i, piece in enumerate(vocab.pieces)]
    different = [i for i, piece in enumerate(wanted) if found[i] != piece]
    # An unknown token is no text, however it is spelled.
    assert [wanted[i] for i in different] in ([], [b"<unk>"])


def test_sentencepiece_folder(stories: Path) -> None:
    assert_equal(stories, spare=7)


def test_byte_level_folder(tmp_path: Path) -> None:
    assert_equal(save_tokenizer(tmp_path))


@pytest.mark.slow
def test_gguf(smollm2: Path) -> None:
    assert_equal(smollm2)


def test_fewer_logits_than_tokens(tmp_path: Path) -> None:
    assert len(Vocabulary.read(save_tokenizer(tmp_path), 100).pieces) == 100 < VOCAB_SIZE


def test_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no grammar can be followed"):
        Vocabulary.read(tmp_path, 10)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": 3}, "decoder": null}')
    with pytest.raises(ModelError, match=r"the vocabulary in .* that it cannot have"):
        Vocabulary.read(tmp_path, 10)
