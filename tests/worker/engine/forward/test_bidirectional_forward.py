"""Steps of a decoder that embeds whole texts and generates too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.protocol.token_columns import unpack
from tests.support import tiny_encoders, tiny_models
from tests.support.worker.whole_texts import engine, plan, text, vectors


def test_text_and_vectors_in_one_step(tmp_path: Path) -> None:
    """A model that does both gives in one step what it gives in two."""
    tiny_models.save_checkpoint(tmp_path, "MistralForCausalLM", sliding_window=None)
    tiny_encoders.rewrite(tmp_path, {}, architectures=["GritLM"])
    tiny_encoders.save_tokenizer(tmp_path, types=False)
    here = engine(tmp_path)
    assert here.resolved.pooling is not None and here.resolved.pooling.generates
    tokens = [9, 8, 7, 6, 5, 30, 31]
    both = here.step(plan(1, text(0, tokens, None), text(1, tokens), text(2, tokens[:3])))
    here.reset()
    one = here.step(plan(1, text(0, tokens, None)))
    here.reset()
    other = here.step(plan(1, text(1, tokens), text(2, tokens[:3])))
    assert unpack(both.tokens) == unpack(one.tokens) and len(both.tokens) == 4
    for slot, vector in vectors(other).items():
        assert vectors(both)[slot] == pytest.approx(vector, abs=1e-5)
    # The step that follows decodes as if nothing had happened.
    with torch.inference_mode():
        follow = here.step(plan(2, text(3, tokens, None)))
    assert unpack(follow.tokens) == unpack(one.tokens)
