"""Models that hear, on tiny random checkpoints, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model
from tests.oracles.audio.heard import Heard, makers

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.row("F01.30", "F01.34", "F01.37", "F01.38")
def test_towers_make_the_numbers_of_transformers(tmp_path: Path, driver: Any) -> None:
    """Embeddings within 1e-3 in float32, and the logits of a text around them."""
    for name, make in sorted(makers().items()):
        (folder := tmp_path / name).mkdir()
        made = make(folder)
        loaded = load_model(folder, CPU)
        assert isinstance(loaded.model, Model) and loaded.model.vision is not None
        tower = loaded.model.vision
        assert made.audio_token in tower.media_tokens, name
        found = tower.encode_media(*zip(*made.clips, strict=True))
        for (clip, grid), one, other in zip(made.clips, found, made.expected, strict=True):
            assert not tower.refusal(clip.shape, grid), name
            assert len(one) == tower.num_tokens(clip.shape, grid), name
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=name)
        ours, logits = spliced(driver(loaded, 1).step, made)
        torch.testing.assert_close(ours, logits, rtol=1e-3, atol=1e-3, msg=name)


def spliced(step: Any, made: Heard) -> tuple[Tensor, Tensor]:
    """Logits of a text with the first clip in its midst: ours, and those of transformers."""
    embeddings, tokens = made.expected[0], list(range(2, 30))
    tokens[8:8] = [made.audio_token] * len(embeddings)
    places = torch.arange(8, 8 + len(embeddings))
    with torch.no_grad():
        inputs = made.text.get_input_embeddings()(torch.tensor(tokens))
        inputs[places] = embeddings[:, : inputs.shape[1]]
        logits = made.text(inputs_embeds=inputs[None]).logits[0]
    return step({0: tokens}, MediaEmbeddings(places, embeddings))[0], logits
