"""Text models of configs that see."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from baton_worker.models.families.vision_common import image_token, text_config, text_model


def test_either_part_says_that_embeddings_are_tied() -> None:
    for outer, inner, default, expected in [
        (None, None, True, True),
        (None, None, False, False),
        (False, True, False, True),
        (True, None, False, True),
        (False, None, True, False),
    ]:
        fields = {} if outer is None else {"tie_word_embeddings": outer}
        own = {} if inner is None else {"tie_word_embeddings": inner}
        c = SimpleNamespace(text_config=SimpleNamespace(model_type="qwen2", **own), **fields)
        assert text_config(c, tied=default).tie_word_embeddings is expected


def test_what_a_config_leaves_out_is_what_transformers_takes() -> None:
    c = SimpleNamespace(text_config=SimpleNamespace(model_type="llama", vocab_size=32_064))
    decoder = text_model(c)
    assert (decoder.hidden, decoder.vocab, len(decoder.layers)) == (4096, 32_064, 32)
    with pytest.raises(AttributeError, match=r"model_type bert is not one of .*llama"):
        text_model(SimpleNamespace(text_config=SimpleNamespace(model_type="bert")))


def test_the_image_token_has_two_names() -> None:
    assert image_token(SimpleNamespace(image_token_id=0, image_token_index=4), 9) == 0
    assert image_token(SimpleNamespace(image_token_index=4), 9) == 4
    assert image_token(SimpleNamespace(), 9) == 9
