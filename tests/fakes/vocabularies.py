"""Vocabularies small enough to read by eye, of both kinds, as a checkpoint would describe them."""

from __future__ import annotations

from typing import Any

from baton.checkpoint.byte_tokens import ALPHABET
from baton_tokenizer.vocabulary.pretokenizers import byte_level, pre_tokenizer
from baton_tokenizer.vocabulary.sentencepiece_model import scored_merges
from baton_tokenizer.vocabulary.vocabulary import Source, TokenizerVocabulary, build

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|im_start|>", "<|im_end|>", "</s>")


def added(token: str, number: int, special: bool = True) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, "special": special, **flags}


def byte_spec() -> dict[str, Any]:
    """A byte-level BPE: ids 0-255 are the bytes, then a few merges, then the special tokens."""
    tokens = sorted(ALPHABET, key=ALPHABET.__getitem__)
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("<", "|")]
    tokens += [left + right for left, right in merges]
    vocab = {token: i for i, token in enumerate(tokens)}
    specials = [added(token, len(vocab) + i) for i, token in enumerate(SPECIALS)]
    return {
        "version": "1.0",
        "added_tokens": [*specials, added("<think>", len(vocab) + len(SPECIALS), special=False)],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer((r" ?\S+|\s+",)),
        "post_processor": None,
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": vocab, "merges": [list(m) for m in merges]},
    }


def sentence_spec() -> dict[str, Any]:
    """A SentencePiece BPE with byte fallback: specials, 256 bytes, pieces with falling scores."""
    pieces = ["▁", *"helowrd", "he", "ll", "hell", "hello", "▁hello", "▁w"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    space = {"pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": [added("<s>", 1), added("</s>", 2)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", **space},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": scored_merges(tokens, types, [-float(i) for i in range(len(tokens))]),
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


def byte_vocab(template: str | None = CHATML, **named: str) -> TokenizerVocabulary:
    """The byte-level vocabulary, ready to use."""
    spec = byte_spec()
    eos = next(t["id"] for t in spec["added_tokens"] if t["content"] == "<|im_end|>")
    templates = {} if template is None else {"default": template}
    return build(Source(spec, templates, {"eos_token": "<|im_end|>", **named}, eos_ids=(eos,)))


def sentence_vocab() -> TokenizerVocabulary:
    """The SentencePiece vocabulary, ready to use."""
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return build(Source(sentence_spec(), {}, named, eos_ids=(2,)))
