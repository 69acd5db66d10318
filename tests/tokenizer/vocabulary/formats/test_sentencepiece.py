"""SentencePiece models, compared with the library itself and with transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mistral_common
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from baton.errors import ModelError
from baton_tokenizer.detokenize import Alphabet, DetokenizeStream, decode
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary
from tests.support.nasty_texts import corpus
from tests.support.tokenizer.sentencepiece_files import (
    KINDS,
    plain,
    trained,
)


def folder(path: Path, model: bytes, **settings: Any) -> Path:
    (path / "tokenizer.model").write_bytes(model)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def ids(vocab: TokenizerVocabulary, text: str, *, special: bool = False) -> list[int]:
    return list(vocab.literal.tokenizer.encode(text, add_special_tokens=special).ids)


def assert_equal(vocab: TokenizerVocabulary, model: bytes, texts: list[str]) -> None:
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model)
    alphabet = Alphabet(vocab)
    for text in texts:
        expected = oracle.encode(text)
        assert ids(vocab, text) == expected, text
        if oracle.unk_id() in expected:
            continue  # the library writes " ⁇ " where there is nothing to write
        assert decode(alphabet, expected, skip_special=True) == oracle.decode(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_equal_the_library(kind: str, tmp_path: Path) -> None:
    model = trained(kind)
    texts = corpus() if kind == "bpe-plain" else [*filter(plain, corpus())]
    assert_equal(load(folder(tmp_path, model)), model, texts)


@pytest.mark.parametrize(
    "name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"]
)
def test_a_real_vocabulary_equals_the_library(name: str, tmp_path: Path) -> None:
    model = (Path(mistral_common.__file__).parent / "data" / name).read_bytes()
    assert_equal(load(folder(tmp_path, model)), model, corpus(1000))


@pytest.mark.parametrize("legacy", [True, False])
def test_special_tokens_in_text_equal_transformers(legacy: bool, tmp_path: Path) -> None:
    from transformers import LlamaTokenizer

    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy, "add_bos_token": True}
    vocab = load(folder(tmp_path, trained("bpe-plain"), **settings))
    oracle = LlamaTokenizer.from_pretrained(tmp_path)
    for text in ("the<s>runner</s>hands", "a</s>b", "the </s>", "baton"):
        assert vocab.tokenizer.encode(text).ids == oracle(text).input_ids, text


def test_the_end_of_t5(tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, trained("unigram"), tokenizer_class="T5TokenizerFast"))
    assert vocab.tokenizer.encode("the").ids == [*ids(vocab, "the"), vocab.eos_ids[0]]
    plain = load(folder(tmp_path, trained("unigram"), add_bos_token=False))
    assert plain.tokenizer.encode("the").ids == ids(plain, "the")


def test_symbols_and_added_tokens(tmp_path: Path) -> None:
    model = trained("bpe", user_defined_symbols="<tool>", control_symbols="<ctl>")
    size = sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size()
    decoder = {str(size + 3): {"content": "<|new|>", "special": True}}
    vocab = load(folder(tmp_path, model, added_tokens_decoder=decoder))
    pieces = [vocab.pieces[i] for i in vocab.tokenizer.encode("the<tool>a<ctl><|new|>").ids]
    assert pieces == [b"<s>", b" the", b"<tool>", b"a", b"<ctl>", b"<|new|>"]
    assert size + 3 in vocab.special_ids and len(vocab.pieces) == size + 4
    text = "a<ctl>b<|new|>"
    assert not vocab.special_ids & set(ids(vocab, text))
    assert_equal(vocab, model, ["a<ctl>b", "the<tool> team", "<s>x</s>"])


def test_streams_give_what_a_whole_decode_gives(tmp_path: Path) -> None:
    model = trained("bpe")
    alphabet = Alphabet(load(folder(tmp_path, model)))
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in corpus():
        stream = DetokenizeStream(alphabet, skip_special=True)
        parts = [stream.push(token) for token in oracle.encode(text)]
        assert "".join(parts) + stream.flush() == oracle.decode(oracle.encode(text))


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({"model_type": "char"}, {}, "words or characters"),
        ({"treat_whitespace_as_suffix": True}, {}, "spaces in another way"),
        ({}, {"tokenizer_class": "XLMRobertaTokenizer"}, "numbers the tokens"),
        ({}, {"tokenizer_class": "SiglipTokenizer"}, "rewrites a text before"),
    ],
)
def test_what_cannot_be_exact_is_refused(
    options: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = trained("bpe-unknown", **options)
    with pytest.raises(ModelError, match=words):
        load(folder(tmp_path, model, **settings))


@pytest.mark.parametrize("content", [b"\n", b"", b"not a model"])
def test_a_broken_file_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a sentencepiece model"):
        load(folder(tmp_path, content))


def test_a_denormalizer_is_refused(tmp_path: Path) -> None:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(trained("bpe"))
    model.denormalizer_spec.precompiled_charsmap = b"x"
    with pytest.raises(ModelError, match="cannot be streamed"):
        load(folder(tmp_path, model.SerializeToString()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe-plain", "unigram"])
@pytest.mark.parametrize("part", [" ", "a", "漢", "the "])
def test_a_megabyte_of_one_thing_is_encoded(kind: str, part: str, tmp_path: Path) -> None:
    """The suite's time limit stands for the rest: a quadratic encoder needs hours."""
    vocab, text = load(folder(tmp_path, trained(kind))), (part * 1_000_000)[:1_000_000]
    found = vocab.literal.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    spelled = decode(Alphabet(vocab), found, skip_special=True)
    assert spelled == (text if kind == "bpe-plain" else text.strip())
