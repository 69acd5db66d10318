"""Positions on several axes, as transformers has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.engine.multimodal.mrope import axis_positions
from baton_worker.engine.multimodal_input import SequenceMedia

IMAGE, START = 9, 8


def item(first: int, grid: tuple[int, int, int], merge: int = 2) -> SequenceMedia:
    count = grid[0] * grid[1] * grid[2] // merge**2
    pixels = np.zeros((1, 1), np.float32)
    return SequenceMedia(b"d" * 32, np.arange(first, first + count), pixels, grid)


@pytest.mark.row("F02.04")
def test_images_of_any_shape_in_any_turn() -> None:
    from transformers import Qwen2VLConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    config = Qwen2VLConfig(image_token_id=IMAGE, vision_start_token_id=START)
    with torch.device("meta"):
        reference = Qwen2VLModel._from_config(config)
    grids = [(1, 4, 6), (1, 2, 2), (1, 8, 2)]
    ids, media = [1, 2], []
    for grid in grids:
        ids += [START]
        media.append(item(len(ids), grid))
        ids += [IMAGE] * len(media[-1].positions) + [3, 4]
    tokens = torch.tensor([ids])
    wanted, deltas = reference.get_rope_index(
        tokens, mm_token_type_ids=(tokens == IMAGE).int(), image_grid_thw=torch.tensor(grids)
    )
    table, shift = axis_positions(media)
    length = table.shape[1]
    assert length == len(ids) - 2
    assert table.tolist() == wanted[:, 0, :length].tolist()
    assert wanted[:, 0, length:].tolist() == [[length + shift, length + 1 + shift]] * 3
    assert int(deltas) == shift


def test_a_grid_that_is_not_that_of_the_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no grid"):
        axis_positions([wrong()])


def wrong() -> SequenceMedia:
    return SequenceMedia(b"d" * 32, np.arange(5), np.zeros((1, 1), np.float32), (1, 4, 6))
