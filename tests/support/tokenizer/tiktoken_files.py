"""tiktoken files made on the spot."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from baton.checkpoint.byte_tokens import ALPHABET
from tests.support.nasty_texts import corpus, prose


@cache
def trained() -> dict[bytes, int]:
    """Bytes and a few hundred merges, as tiktoken keeps them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(ALPHABET, key=ALPHABET.__getitem__)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    spaces = [" " * n + "x" for n in range(1, 20)]
    tokenizer.train_from_iterator([*prose(300), *spaces, "aaaa aaa aa", *corpus(100)], trainer)
    names = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    merged = [bytes(ALPHABET[c] for c in name) for name in names]
    order = [bytes([i]) for i in range(256)] + [token for token in merged if len(token) > 1]
    return {token: rank for rank, token in enumerate(order)}
