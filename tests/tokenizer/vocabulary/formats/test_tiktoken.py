"""tiktoken files, compared with the library itself."""

from __future__ import annotations

import base64
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from baton.errors import ModelError
from baton_tokenizer.detokenize import Alphabet, DetokenizeStream, decode
from baton_tokenizer.vocabulary.formats.tiktoken import FAMILIES, read_ranks
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.pretokenizers import cut
from tests.support.nasty_texts import corpus
from tests.support.tokenizer.tiktoken_files import (
    trained,
)


def folder(path: Path, named: str, file: str = "x.tiktoken", **settings: Any) -> Path:
    lines = [f"{base64.b64encode(t).decode()} {rank}\n" for t, rank in trained().items()]
    (path / file).write_text("".join(lines))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named, **settings}))
    return path


def oracle(family: str) -> tiktoken.Encoding:
    [pattern] = cut(FAMILIES[family].cut).patterns
    return tiktoken.Encoding(family, pat_str=pattern, mergeable_ranks=trained(), special_tokens={})


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_text_equal_the_library(family: str, tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, FAMILIES[family].classes[0]))
    reference, alphabet = oracle(family), Alphabet(vocab)
    for text in corpus(600):
        if FAMILIES[family].compose:
            text = unicodedata.normalize("NFC", text)
        ids = vocab.literal.tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode_ordinary(text), text
        assert decode(alphabet, ids, skip_special=True) == text
        stream = DetokenizeStream(alphabet, skip_special=True)
        assert "".join(map(stream.push, ids)) + stream.flush() == text


def test_qwen_vl_has_tokens_for_images_behind_those_of_qwen(tmp_path: Path) -> None:
    named = folder(tmp_path, "QWenTokenizer")
    plain, first = load(named).tokenizer, len(trained()) + 3 + 205
    assert len(plain.encode("<imgpad>").ids) > 1
    start = first + 6
    (named / "config.json").write_text(json.dumps({"visual": {"image_start_id": start}}))
    vocab = load(named)
    assert vocab.tokenizer.encode("<ref><img><imgpad></img>").ids == [
        first,
        start,
        start + 2,
        start + 1,
    ]
    assert vocab.placeholders == {"image": "<imgpad>"}


def test_qwen_composes_characters(tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, "QWenTokenizer"))
    assert vocab.tokenizer.encode("e\u0301").ids == vocab.tokenizer.encode("é").ids


def test_the_special_tokens_of_a_family(tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, "QWenTokenizer"))
    first = len(trained())
    text = "<|im_start|>a<|im_end|>"
    assert vocab.tokenizer.encode(text).ids == [first + 1, ord("a"), first + 2]
    assert vocab.eos_ids == (first + 2,) and len(vocab.special_ids) == 208
    literal = vocab.literal.tokenizer.encode(text).ids
    assert not vocab.special_ids & set(literal)
    assert b"".join(vocab.pieces[i] for i in literal).decode() == text


def test_added_tokens_may_leave_gaps(tmp_path: Path) -> None:
    first = len(trained())
    decoder = {str(first + 7): {"content": "[EOS]", "special": True}}
    path = folder(
        tmp_path,
        "TikTokenTokenizer",
        "tiktoken.model",
        added_tokens_decoder=decoder,
        eos_token="[EOS]",
    )
    vocab = load(path)
    ids = vocab.tokenizer.encode(f"[EOS]<|reserved_token_{first + 255}|>").ids
    assert ids == [first + 7, first + 255]
    assert vocab.eos_ids == (first + 7,)
    assert not vocab.tokenizer.token_to_id(f"<|reserved_token_{first + 256}|>")


def test_texts_of_glm_begin_with_its_two_tokens(tmp_path: Path) -> None:
    first = len(trained())
    names = ("<|endoftext|>", "[gMASK]", "<sop>")
    decoder = {str(first + i): {"content": n, "special": True} for i, n in enumerate(names)}
    path = folder(tmp_path, "ChatGLM4Tokenizer", "tokenizer.model", added_tokens_decoder=decoder)
    assert load(path).tokenizer.encode("a").ids == [first + 1, first + 2, ord("a")]


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'MartianTokenizer'.*Known: QWenTokenizer"):
        load(folder(tmp_path, "MartianTokenizer"))


@pytest.mark.parametrize("content", ["!! 1\n", "QQ== x\n", "QQ==\n", "QQ== 1\nQg== 1\n", ""])
def test_broken_ranks_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "x.tiktoken"
    file.write_text(content)
    with pytest.raises(ModelError, match=r"x\.tiktoken"):
        read_ranks(file)
