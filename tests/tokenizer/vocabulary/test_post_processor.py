"""First and last tokens of texts."""

from __future__ import annotations

from baton_tokenizer.vocabulary.post_processor import bert_frame, frame
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec
from tests.fakes.vocabularies import byte_spec

BOS, EOS = ("<|im_start|>", 262), ("</s>", 264)


def test_one_text_and_two() -> None:
    encoder = compile_spec(byte_spec() | {"post_processor": frame([BOS], [EOS])})
    assert encoder.encode("x").ids == [262, ord("x"), 264]
    assert encoder.encode("x", "y").ids == [262, ord("x"), 264, 262, ord("y"), 264]


def test_a_pair_of_bert_has_one_beginning() -> None:
    encoder = compile_spec(byte_spec() | {"post_processor": bert_frame(BOS, EOS)})
    found = encoder.encode("x", "y")
    assert found.ids == [262, ord("x"), 264, ord("y"), 264]
    assert found.type_ids == [0, 0, 0, 1, 1]


def test_nothing_is_no_frame() -> None:
    assert frame([], []) is None
