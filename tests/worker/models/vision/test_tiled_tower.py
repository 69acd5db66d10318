"""States that layers of a decoder attend to, against Llama 3.2 Vision of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.load_tower import load_tower
from baton_worker.layers.attention.cross_states import CrossInputs, CrossWrite
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model
from tests.support import tiny_mllama
from tests.support.tiny_dual_encoders import picture

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.row("V14", "F23.02")
def test_states_and_logits_are_those_of_transformers(tmp_path: Path, driver: Any) -> None:
    """A prompt that begins with its image, in two chunks. Padding of tiles and of an image is seen
    as in training; images run alone."""
    reference = tiny_mllama.save(tmp_path)
    token, hidden = reference.config.image_token_index, 48
    tokens, images = [token, *range(3, 20)], [picture(30, 15, 1), picture(12, 9, 2)]
    given = tiny_mllama.inputs(tokens, images[:1], token)
    both = tiny_mllama.inputs(tokens, images, token)
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([tokens]), **given).logits[0]
        found = reference.model.vision_model(
            *(both[name] for name in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask"))
        )
        states = reference.model.multi_modal_projector(found.last_hidden_state)[0]
    loaded = load_model(tmp_path, CPU)
    assert isinstance(loaded.model, Model) and loaded.model.vision is not None
    pixels, grids = [both["pixel_values"][0, 0, :2], both["pixel_values"][0, 1, :1]], (1, 1, 2)
    for tower in (loaded.model.vision, load_tower(tmp_path, CPU).tower):
        made = tower.encode_media(pixels, [grids, (1, 1, 1)])
        assert [len(part) for part in made] == [2 * 17, 17]
        assert [tower.num_tokens(part.shape, grids) for part in pixels] == [2 * 17, 17]
        for part, expected in zip(made, states, strict=True):
            wanted = expected.flatten(0, 1)[: len(part)]
            torch.testing.assert_close(part, wanted, rtol=1e-3, atol=1e-3)
        assert tower.num_placeholders(34) == 1
        assert made[0].shape[1] == tower.width == hidden and tower.progress > 0
        assert "none of the shapes" in tower.refusal((6, 3, 16, 16), (1, 2, 3))
        assert "was expected" in tower.refusal((1, 3, 16, 16), grids)
        assert tower.refusal((2, 3, 16, 16), grids) == ""
    pages, none = torch.arange(3, 12), torch.zeros(0, dtype=torch.int64)

    def media(count: int, *writes: CrossWrite) -> MediaEmbeddings:
        places, items = torch.arange(count), torch.zeros(count, dtype=torch.int64)
        lengths = torch.tensor([len(made[0])])
        cross = CrossInputs(places, items, pages[None].int(), lengths, writes, 12)
        return MediaEmbeddings(none, torch.zeros(0, hidden), cross=cross)

    rows = driver(loaded, 1)
    first = rows.step({0: tokens[:5]}, media(5, CrossWrite(pages, made[0])))[0]
    ours = torch.cat((first, rows.step({0: tokens[5:]}, media(len(tokens) - 5))[0]))
    vocab = logits.shape[1]
    torch.testing.assert_close(ours[:, :vocab], logits, rtol=1e-3, atol=1e-3)
    assert bool((ours[:, vocab:] < -1e29).all()), "never sampled"
