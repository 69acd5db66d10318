"""Models that hear, on tiny random checkpoints, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model
from tests.oracles.audio import fun_audio, ultravox
from tests.oracles.audio.heard import Heard, makers

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.row("A03", "A08", "A14", "F01.30", "F01.34", "F01.36", "F01.37", "F01.38")
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


@pytest.mark.row("A03")
def test_ultravox_before_version_0_5(tmp_path: Path) -> None:
    """Its second norm is behind the projector; what it lacks is named."""
    made = ultravox.saved(tmp_path, "ln_post")
    model = load_model(tmp_path, CPU).model
    assert isinstance(model, Model) and model.vision is not None
    found = model.vision.encode_media(*zip(*made.clips, strict=True))
    for one, other in zip(found, made.expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert "5 frames are not 4 to 4" in model.vision.refusal((1, 20, 5), (1, 4, 0))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    for change, words in (
        ({"text_model_id": "a/b"}, "save the whole model into one folder"),
        ({"audio_token_index": None}, "the token in whose place a sound goes"),
        ({"audio_latency_block_size": 100}, "audio_latency_block_size"),
    ):
        file.write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=words):
            load_model(tmp_path, CPU)


@pytest.mark.row("A08", "F01.36")
def test_a_continuous_encoder_alone(tmp_path: Path) -> None:
    """Fun-Audio-Chat without its embedding of codes."""
    made = fun_audio.saved(tmp_path, "replace")
    model = load_model(tmp_path, CPU).model
    assert isinstance(model, Model) and model.vision is not None
    found = model.vision.encode_media(*zip(*made.clips, strict=True))
    for one, other in zip(found, made.expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert "are no grid" in model.vision.refusal((1, 20, 8), (1, 8, 2))


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
