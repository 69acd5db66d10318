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


@pytest.mark.row("F02.04")
def test_videos_in_one_box_and_in_a_box_for_each_frame() -> None:
    """Qwen2.5-VL by seconds, Qwen3-VL with text between frames, as transformers while the time
    axis is not the longest side."""
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    vision = {"tokens_per_second": 3}
    with torch.device("meta"):
        seconds = Qwen2_5_VLModel._from_config(Qwen2_5_VLConfig(vision_config=vision))
        frames = Qwen3VLModel._from_config(Qwen3VLConfig())
    grid = (3, 4, 12)
    whole = [1, 2, *[IMAGE] * 36, 3, 4]
    apart = [1, *[2, 3, *[IMAGE] * 12] * 3, 4]
    for reference, ids, rate, gap in ((seconds, whole, 3.0, 0.7), (frames, apart, 0.0, 0.7)):
        tokens = torch.tensor([ids])
        wanted, deltas = reference.get_rope_index(
            tokens,
            mm_token_type_ids=(tokens == IMAGE).int() * 2,
            video_grid_thw=torch.tensor([grid]),
            second_per_grid_ts=torch.tensor([gap]),
        )
        places = np.flatnonzero(np.array(ids) == IMAGE)
        clip = item_at(places.tolist(), grid, gap)
        table, shift = axis_positions([clip], rate)
        assert table.tolist() == wanted[:, 0, : table.shape[1]].tolist()
        assert int(deltas) == shift
    # The published rule: text goes on behind the longest side, be it the time axis.
    table, shift = axis_positions([item_at(list(range(2, 10)), (8, 2, 2), 0.5)], 4.0)
    assert table[0, 2:].tolist() == [2, 4, 6, 8, 10, 12, 14, 16] and shift == 17 - 10
    with pytest.raises(ValueError, match="2 runs of embeddings are no 3 frames"):
        axis_positions([item_at([1, 2, 4], (3, 2, 2))])


def item_at(places: list[int], grid: tuple[int, int, int], gap: float = 0.0) -> SequenceMedia:
    pixels = np.zeros((1, 1), np.float32)
    return SequenceMedia(b"d" * 32, np.array(places), pixels, grid, seconds_per_grid=gap)


def test_a_grid_that_is_not_that_of_the_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no grid"):
        axis_positions([wrong()])


def wrong() -> SequenceMedia:
    return SequenceMedia(b"d" * 32, np.arange(5), np.zeros((1, 1), np.float32), (1, 4, 6))


@pytest.mark.row("V35")
def test_rows_and_columns_of_an_image_may_count_apart() -> None:
    """As Perceptron describes Isaac: an image is one step in time, whatever its size."""
    media = [item(2, (1, 4, 6)), item(10, (1, 2, 4))]
    table, shift = axis_positions(media, apart=True)
    time = [0, 1, *[2] * 6, 3, 4, 5, 5]
    rows = [0, 1, 0, 0, 0, 1, 1, 1, 3, 4, 0, 0]
    columns = [0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1]
    assert table.tolist() == [time, rows, columns]
    assert len(time) + shift == 6, "text goes on one behind the last image"
