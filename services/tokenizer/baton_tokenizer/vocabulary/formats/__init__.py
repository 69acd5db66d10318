"""Vocabulary file formats, in order of preference.

A format is a class of two static methods: `fits(path)` detects its file, and `read(path)` returns a
`Source`. Each format is converted to an equivalent tokenizer.json, so that one encoder, one decoder
and one guard against imitated special tokens serve them all.
"""

from __future__ import annotations

from baton.registry import Registry

FORMATS = Registry(
    "vocabularies",
    {
        "tokenizer.json": "baton_tokenizer.vocabulary.formats.huggingface:HuggingFace",
        "gguf": "baton_tokenizer.vocabulary.formats.gguf:Gguf",
        "tekken": "baton_tokenizer.vocabulary.formats.tekken:Tekken",
        "tiktoken": "baton_tokenizer.vocabulary.formats.tiktoken:Tiktoken",
        "sentencepiece": "baton_tokenizer.vocabulary.formats.sentencepiece:SentencePiece",
    },
)

__all__ = ["FORMATS"]
