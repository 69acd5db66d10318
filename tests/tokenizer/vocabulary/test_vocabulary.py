"""Properties of a loaded vocabulary."""

from __future__ import annotations

from baton_tokenizer.vocabulary.vocabulary import Source, build
from tests.fakes.vocabularies import (
    added,
    byte_spec,
    byte_vocab,
    sentence_vocab,
)


def test_pieces_are_raw_bytes_by_id() -> None:
    vocab = byte_vocab()
    assert vocab.pieces[:256] == tuple(bytes([b]) for b in range(256))
    assert vocab.pieces[vocab.tokenizer.token_to_id("hello")] == b"hello"
    assert vocab.pieces[vocab.tokenizer.token_to_id("<|im_end|>")] == b"<|im_end|>"
    sentence = sentence_vocab()
    assert sentence.pieces[3 + 0xE4] == b"\xe4"
    assert sentence.pieces[sentence.tokenizer.token_to_id("▁hello")] == b" hello"


def test_ids_that_no_token_has_are_empty_pieces() -> None:
    spec = byte_spec()
    spec["model"]["vocab"]["far"] = 400
    vocab = build(Source(spec, {}, {}))
    assert len(vocab.pieces) == 401 and vocab.pieces[399] == b"" and vocab.pieces[400] == b"far"


def test_the_longest_token_bounds_what_a_token_covers() -> None:
    assert byte_vocab().longest == len("<|im_start|>")


def test_info() -> None:
    spec = byte_spec()
    number = len(spec["model"]["vocab"]) + len(spec["added_tokens"])
    spec["added_tokens"] += [added("<|image_pad|>", number), added("<image>", number + 1, False)]
    source = Source(spec, {"default": "x"}, {"bos_token": "</s>"}, eos_ids=(5, 6), media_ids=(9,))
    info = build(source).info("tiny")
    assert info.model == "tiny" and info.vocab_size == number + 2 and info.eos_ids == (5, 6)
    assert info.bos_id == next(t["id"] for t in spec["added_tokens"] if t["content"] == "</s>")
    assert info.has_chat_template
    assert number in info.special_ids and number + 1 not in info.special_ids
    assert info.media_ids == (9, number)


def test_no_bos_and_no_template() -> None:
    info = byte_vocab(template=None).info("tiny")
    assert info.bos_id == -1 and not info.has_chat_template
