"""Vocabularies inside GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from baton.errors import ModelError
from baton_tokenizer.detokenize import Alphabet, decode
from baton_tokenizer.vocabulary.formats import gguf as formats_gguf
from baton_tokenizer.vocabulary.formats.gguf import read_gguf
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec
from baton_tokenizer.vocabulary.vocabulary import build
from tests.fakes.vocabularies import byte_spec, sentence_spec
from tests.support.nasty_texts import corpus
from tests.support.tokenizer.sentencepiece_files import plain, trained


def write(path: Path, **fields: Any) -> Path:
    """A GGUF file that holds `tokenizer.ggml.*` fields alone."""
    writer = gguf.GGUFWriter(path, "llama")
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
    for name, value in fields.items():
        key = name if "." in name else f"tokenizer.ggml.{name}"
        add.get(type(value), writer.add_array)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_fields() -> dict[str, Any]:
    spec = byte_spec()
    tokens = [*spec["model"]["vocab"], *(t["content"] for t in spec["added_tokens"])]
    kinds = [1] * len(spec["model"]["vocab"]) + [3, 3, 3, 4]
    merges = [" ".join(m) for m in spec["model"]["merges"]]
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": tokens.index("</s>"),
        "eos_token_id": tokens.index("</s>"),
    }


def sentence_fields() -> dict[str, Any]:
    tokens = list(sentence_spec()["model"]["vocab"])
    normal = len(tokens) - 259
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, *[6] * 256, *[1] * normal],
        "scores": [-float(i) for i in range(len(tokens))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def test_a_byte_level_vocabulary(tmp_path: Path) -> None:
    fields = byte_fields() | {"tokenizer.chat_template": "T", "tokenizer.chat_template.rag": "R"}
    source = read_gguf(write(tmp_path / "b.gguf", **fields))
    tokens = fields["tokens"]
    assert source.templates == {"default": "T", "rag": "R"}
    assert source.named == {"bos_token": "</s>", "eos_token": "</s>"}
    assert source.eos_ids == (tokens.index("</s>"), tokens.index("<|im_end|>"))
    # Of gpt-oss, "<|end|>" ends one of several messages of a turn.
    more = ["<|end|>", "<|return|>", "<|call|>", "<|endoftext|>", "<|file_sep|>", "</p>"]
    added = {"tokens": tokens + more, "token_type": fields["token_type"] + [3, 1, 3, 4, 3, 3]}
    harmony = read_gguf(write(tmp_path / "h.gguf", **fields | added))
    assert harmony.eos_ids == (*source.eos_ids, *range(len(tokens) + 1, len(tokens) + 5))
    special = {len(tokens) + i for i in range(len(more))}
    assert build(harmony).special_ids >= special
    # Files that name a token of infilling have no other, and without types no tag of HTML ends.
    named = {"fim_sep_token_id": len(tokens) + 5, "token_type": [1] * len(tokens + more)}
    ends = read_gguf(write(tmp_path / "n.gguf", **fields | added | named)).eos_ids
    assert ends == (
        *(tokens.index("</s>"), len(tokens) + 5),
        *(tokens.index("<|im_end|>"), *range(len(tokens) + 1, len(tokens) + 4)),
    )
    ids = compile_spec(source.spec).encode("hello world 12<|im_end|><think>").ids
    texts = [tokens[i] for i in ids]
    assert texts == ["hello", "Ġw", *"orld", "Ġ", "1", "2", "<|im_end|>", "<think>"]
    assert build(source).special_ids == {
        tokens.index(t) for t in ("<|im_start|>", "<|im_end|>", "</s>")
    }


def test_a_sentencepiece_vocabulary_encodes_like_its_source(tmp_path: Path) -> None:
    source = read_gguf(write(tmp_path / "s.gguf", **sentence_fields()))
    ours, theirs = compile_spec(source.spec), compile_spec(sentence_spec())
    for text in ("hello world", " hello", "héllo\n", "漢 hello</s>hello"):
        assert ours.encode(text).ids == [1, *theirs.encode(text).ids]
    assert source.named["unk_token"] == "<unk>"


def test_the_token_of_images_is_matched_whatever_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "s.gguf", **sentence_fields())
    assert 0 not in compile_spec(read_gguf(file).spec).encode("hello<unk>").ids
    monkeypatch.setattr(formats_gguf, "_placeholder_ids", lambda path: {"image": 0})
    source = read_gguf(file)
    assert compile_spec(source.spec).encode("hello<unk>").ids[-1] == 0
    assert 0 in build(source).special_ids


@pytest.mark.parametrize("prefix", [True, False])
def test_the_space_prefix_flag(prefix: bool, tmp_path: Path) -> None:
    fields = sentence_fields() | {"add_space_prefix": prefix, "add_bos_token": False}
    vocab = build(read_gguf(write(tmp_path / "s.gguf", **fields)))
    ids = vocab.tokenizer.encode("hello").ids
    assert [vocab.pieces[i] for i in ids] == ([b" hello"] if prefix else [b"hello"])
    assert decode(Alphabet(vocab), ids, skip_special=True) == "hello"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [1, 2]),
        ({"add_eos_token": True}, [1, 2, 2]),
        ({"add_bos_token": False}, [2]),
        ({"add_bos_token": False, "add_eos_token": True}, [2, 2]),
    ],
)
def test_bos_and_eos_flags(flags: dict[str, bool], expected: list[int], tmp_path: Path) -> None:
    source = read_gguf(write(tmp_path / "s.gguf", **sentence_fields(), **flags))
    assert compile_spec(source.spec).encode("</s>").ids == expected


def test_the_pre_tokenizer_decides_whether_bos_is_added(tmp_path: Path) -> None:
    fields = byte_fields()
    plain = read_gguf(write(tmp_path / "a.gguf", **fields))
    llama = read_gguf(write(tmp_path / "b.gguf", **fields | {"pre": "llama-bpe"}))
    bos = fields["bos_token_id"]
    assert compile_spec(plain.spec).encode("x").ids == [ord("x")]
    assert compile_spec(llama.spec).encode("x").ids == [bos, ord("x")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "rwkv"}, "kind 'rwkv'"),
        ({"model": "bert", "tokens": ["a"], "token_type": [1]}, "does not name the tokens"),
        ({"pre": "martian"}, "'martian'"),
        ({"merges": ["q q"]}, "cannot be built"),
    ],
)
def test_what_cannot_be_read_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        load(write(tmp_path / "x.gguf", **byte_fields() | change))


def wordpiece() -> tuple[list[str], dict[str, Any]]:
    """A WordPiece vocabulary as BERT has it, and as llama.cpp's converter writes it."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["the", "run", "##ner", "##s", "baton", "漢", "!", "e", "##e", "[x]"]
    written = [w if w[0] == "[" else w[2:] if w[:2] == "##" else f"▁{w}" for w in words]
    return [*specials, *words], {
        "model": "bert",
        "tokens": [*specials, *written],
        "token_type": [3] * 5 + [1] * len(words),
        "bos_token_id": 2,
        "unknown_token_id": 1,
        "seperator_token_id": 3,
        "padding_token_id": 0,
    }


@pytest.mark.parametrize("cased", [False, True])
def test_a_wordpiece_vocabulary_equals_transformers(cased: bool, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    names, fields = wordpiece()
    if cased:
        fields["tokenizer.ggml.normalizer.lowercase"] = False
    vocab = load(write(tmp_path / "w.gguf", **fields))
    oracle = BertTokenizer(vocab={n: i for i, n in enumerate(names)}, do_lower_case=not cased)
    for text in ("The runners!", "thé BATON", "漢漢 x[x]", "[MASK] the", "", *corpus(100)):
        assert vocab.tokenizer.encode(text).ids == oracle(text).input_ids, text
    assert vocab.tokenizer.encode("the", "run").ids == oracle("the", "run").input_ids
    ids = vocab.tokenizer.encode("the runners !", add_special_tokens=False).ids
    assert decode(Alphabet(vocab), ids, skip_special=True) == "the runners!"


def test_a_unigram_vocabulary_encodes_like_its_source(tmp_path: Path) -> None:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(trained("unigram"))
    fields = {
        "model": "t5",
        "tokens": [p.piece for p in model.pieces],
        "token_type": [p.type for p in model.pieces],
        "scores": [p.score for p in model.pieces],
        "precompiled_charsmap": [*model.normalizer_spec.precompiled_charsmap],
        "remove_extra_whitespaces": True,
        "unknown_token_id": 0,
        "eos_token_id": 2,
    }
    vocab = load(write(tmp_path / "t5.gguf", **fields))
    oracle = SentencePieceProcessor(model_proto=model.SerializeToString())
    for text in filter(plain, corpus(200)):
        ids = vocab.literal.tokenizer.encode(text).ids
        assert ids == [*oracle.encode(text), 2], text


def test_merges_of_characters(tmp_path: Path) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", "\n\n", "▁", "a", "b", "ab", "▁ab"]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    fields = {
        "model": "gemma4",
        "tokens": tokens,
        "token_type": [3] * 4 + [1] * 7 + [6] * 256,
        "merges": ["a b", "▁ ab", "\n \n"],
        "bos_token_id": 2,
        "add_bos_token": True,
    }
    vocab = load(write(tmp_path / "g.gguf", **fields))
    ids = vocab.tokenizer.encode("ab ab\n\nbé").ids
    assert ids == [2, 9, 10, 5, 8, 11 + 0xC3, 11 + 0xA9]
    assert decode(Alphabet(vocab), ids, skip_special=True) == "ab ab\n\nbé"


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no vocabulary"):
        read_gguf(write(tmp_path / "x.gguf", pre="qwen2"))
