"""Positions within images, as transformers has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.engine.multimodal.rope_index import RULES
from baton_worker.engine.multimodal_input import SequenceMedia

IMAGE = 9


@pytest.mark.row("V50")
def test_images_count_their_own_columns_and_rows() -> None:
    """On three axes and on four, which begin with that of texts; text goes on as if images were
    text."""
    from transformers import HunYuanVLConfig
    from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLModel

    grids, ids, media = [(1, 4, 6), (1, 2, 2), (1, 8, 2)], [1, 2], []
    for _, rows, columns in grids:
        count = rows // 2 * (columns // 2 + 1) + 2
        places, pixels = np.arange(len(ids), len(ids) + count), np.zeros((1, 1), np.float32)
        media.append(SequenceMedia(b"d" * 32, places, pixels, (1, rows, columns)))
        ids += [*[IMAGE] * count, 3, 4]
    tokens, tower = torch.tensor([ids]), SimpleNamespace(merge=2)
    given: dict[str, Any] = {"mm_token_type_ids": (tokens == IMAGE).int()}
    for sections in ([16, 24, 24], [16, 16, 16, 16]):
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
        text = {"rope_parameters": rope, "head_dim": 128}
        with torch.device("meta"):
            reference = HunYuanVLModel._from_config(HunYuanVLConfig(text_config=text))
        wanted, deltas = reference.get_rope_index(
            tokens, image_grid_thw=torch.tensor(grids), **given
        )
        placed = RULES["xdrope"](media, len(sections), tower)  # type: ignore[arg-type]
        assert placed.of(np.arange(len(ids))).tolist() == wanted[:, 0].tolist()
        assert int(deltas) == placed.shift == 0
    media[1] = SequenceMedia(b"d" * 32, np.arange(7), np.zeros((1, 1), np.float32), (1, 4, 6))
    with pytest.raises(ValueError, match=r"7 embeddings are no grid of \[1, 4, 6\] patches"):
        RULES["xdrope"](media, 4, tower)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no positions on 4 axes"):
        RULES["mrope"](media, 4, tower)  # type: ignore[arg-type]
