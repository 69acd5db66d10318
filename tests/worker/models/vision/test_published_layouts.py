"""Models that transformers has no class for, in the layout of their makers, against an independent
re-computation of their towers (`tests.oracles.towers`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model
from tests.oracles.towers.sights import Sight, makers

CPU = BuildContext(torch.device("cpu"), torch.float32)
ROWS = (
    "V07",
    "V12",
    "V24",
    "V28",
    "F01.18",
    "V19",
    "V20",
    "V29",
    "V30",
    "V32",
    "V33",
    "V34",
    "V35",
    "V36",
    "V37",
    "V38",
    "V39",
    "V43",
    "V44",
    "V45",
    "V47",
    "V48",
    "V49",
    "V52",
    "V53",
    "V54",
    "V55",
    "V57",
    "V58",
    "V59",
    "V62",
)


@pytest.mark.row(
    "F01.07",
    "F01.12",
    "F01.13",
    "F01.21",
    "F01.22",
    "F01.23",
    "F01.24",
    "F01.25",
    "F01.27",
    "F01.28",
    "F02.07",
    "F23.02",
    *ROWS,
)
def test_towers_equal_an_independent_re_computation(tmp_path: Path, driver: Any) -> None:
    """Embeddings within 1e-3 in float32, and the logits of a text around them, where the language
    model is one of transformers."""
    for name, make in sorted(makers().items()):
        folder = tmp_path / name
        folder.mkdir()
        with torch.no_grad():
            seen = make(folder)
        loaded = load_model(folder, CPU)
        assert isinstance(loaded.model, Model)
        tower = loaded.model.vision
        assert tower is not None and tower.image_token == seen.image_token, name
        found = tower.encode_media(*zip(*seen.images, strict=True))
        for (image, grid), one, other in zip(seen.images, found, seen.expected, strict=True):
            assert not tower.refusal(image.shape, grid), name
            assert len(one) == len(other) == tower.num_tokens(image.shape, grid), name
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=name)
        if seen.text is not None:
            step = driver(loaded, 1).step
            ours, logits = spliced(step, seen)
            torch.testing.assert_close(ours, logits, rtol=1e-3, atol=1e-3, msg=name)


def spliced(step: Any, seen: Sight) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a text with the first image, or the begin of a long one, in its midst: ours, and
    those of transformers."""
    embeddings, tokens = seen.expected[0][:200], list(range(2, 30))
    tokens[8:8] = [seen.image_token] * len(embeddings)
    places = torch.arange(8, 8 + len(embeddings))
    with torch.no_grad():
        inputs = seen.text.get_input_embeddings()(torch.tensor(tokens))
        inputs[places] = embeddings
        logits = seen.text(inputs_embeds=inputs[None]).logits[0]
    return step({0: tokens}, MediaEmbeddings(places, embeddings))[0], logits
