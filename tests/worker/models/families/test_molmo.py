"""Molmo 2 against transformers: what is said of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model
from tests.support import tiny_molmo2

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.row("V59", "F02.08", "F23.03")
@torch.no_grad()
def test_embeddings_are_added_and_tokens_that_have_no_row_are_never_sampled(
    tmp_path: Path, driver: Any
) -> None:
    """All tokens of an image, marks included, see one another."""
    model = tiny_molmo2.save(tmp_path)
    image = (torch.randn(3, 3, 110, 110, generator=torch.Generator().manual_seed(1)), (1, 1, 2))
    count = 6 * 6 + 6 * 7
    inner = [tiny_molmo2.IMAGE_TOKEN] * count
    text = [2, 3, 4, 330, *inner[:36], 331, 330, *inner[36:], 331, 5, 6, 7]
    first, end = 3, len(text) - 3
    kinds = torch.zeros(1, len(text), dtype=torch.int64)
    kinds[:, first:end] = 1
    given = tiny_molmo2.inputs([image])
    expected = model(torch.tensor([text]), mm_token_type_ids=kinds, **given).logits[0]
    loaded = load_model(tmp_path, CPU)
    assert isinstance(loaded.model, Model) and loaded.model.vision is not None
    [seen] = loaded.model.vision.encode_media([image[0]], [image[1]])
    places = torch.tensor([at for at, token in enumerate(text) if token == 322])
    last = [end - 1 if first <= at < end else at for at in range(len(text))]
    media = MediaEmbeddings(places, seen, added=True)
    found = driver(loaded, 1).step({0: text}, media, last)[0]
    torch.testing.assert_close(found[:, :320], expected, rtol=1e-3, atol=1e-3)
    assert found.shape[1] == 336 and (found[:, 320:] < -1e29).all()


def test_what_a_config_says_that_no_layer_does(spec_of: Any) -> None:
    for fields in ({"qk_norm_type": "olmo"}, {"rope_scaling_layers": [0]}):
        text = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 8}
        text |= {"num_attention_heads": 1, "num_key_value_heads": 1} | fields
        with pytest.raises(ModelError, match=next(iter(fields))):
            spec_of("Molmo2ForConditionalGeneration", text_config=text)
