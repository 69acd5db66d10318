"""Voxtral Realtime: what is heard goes along with every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model
from tests.oracles.audio.heard import saved
from tests.support.tiny_voxtral_realtime import MELS, config_of

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.row("A12")
@pytest.mark.parametrize(("delay", "tied"), [(2, True), (12, False)])
def test_logits_are_those_of_transformers(
    tmp_path: Path, driver: Any, delay: int, tied: bool
) -> None:
    """Of 60 tokens, more than the decoder's window, with their sounds; the delay conditions it."""
    name = "VoxtralRealtimeForConditionalGeneration"
    fields = {"default_num_delay_tokens": delay, "tie_word_embeddings": tied}
    reference = saved(tmp_path, name, config_of(320, **fields))
    loaded = load_model(tmp_path, CPU)
    assert isinstance(loaded.model, Model) and loaded.model.vision is not None
    tower = loaded.model.vision
    assert tower.alongside and tower.added
    features = torch.randn(1, MELS, 8 * 60, generator=torch.Generator().manual_seed(3))
    grid, tokens = (1, 8 * 60, 0), list(range(2, 62))
    assert tower.num_tokens(features.shape, grid) == 60
    assert "windows of 3600 frames" in tower.refusal((1, MELS, 3608), (1, 3608, 0))
    [embeddings] = tower.encode_media([features], [grid])
    with torch.no_grad():
        ids = torch.tensor([tokens])
        wanted = reference(ids, input_features=features, num_delay_tokens=delay).logits[0]
    added = MediaEmbeddings(torch.arange(60), embeddings, added=True)
    found = driver(loaded, 1).step({0: tokens}, added)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
