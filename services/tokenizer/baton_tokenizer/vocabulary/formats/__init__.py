"""Every kind of file that holds a vocabulary, in order of preference.

A format is a class of two static methods: `fits(path)` says whether a path holds such a file, and
`read(path)` makes a `Source` of it. Each is rewritten as the tokenizer.json that would describe the
same vocabulary, so that one encoder, one decoder and one guard against look-alikes serve them all.
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
