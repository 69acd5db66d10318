"""Positions on several axes, as transformers has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from baton_mm_preprocess.video.families import VIDEO_FAMILIES
from baton_worker.engine.multimodal.mrope import AXES, axis_positions
from baton_worker.engine.multimodal.rope_index import mrope, mrope_shared
from baton_worker.engine.multimodal_input import SequenceMedia
from tests.support import tiny_omni

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
    table, shift = axis_positions(media, separate=True)
    time = [0, 1, *[2] * 6, 3, 4, 5, 5]
    rows = [0, 1, 0, 0, 0, 1, 1, 1, 3, 4, 0, 0]
    columns = [0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1]
    assert table.tolist() == [time, rows, columns]
    assert len(time) + shift == 6, "text goes on one behind the last image"


@pytest.mark.row("A04", "A05")
@pytest.mark.parametrize("name", tiny_omni.NAMES)
def test_a_video_and_its_sound(name: str, tmp_path: Path) -> None:
    """Among one another, by time; text goes on behind the last of them. Sounds and images stand
    around both."""
    model = tiny_omni.save(tmp_path, name)
    rate, rule = (25, mrope_shared) if name == "qwen2.5-omni" else (13, mrope)
    image, video, sound, *marks = tiny_omni.token_ids(model)
    family = VIDEO_FAMILIES[model.config.architectures[0]].sound
    assert family is not None
    lengths = {"qwen2.5-omni": ((8, 2), (280, 70)), "qwen3-omni": ((100, 13), (300, 39))}[name]
    (short, few), (frames, heard) = lengths
    grid = (3, 4, 6)
    order = family.read(vars(model.config), video, sound, lambda text: [0])
    ids = [5, 6, marks[0], *[sound] * few, marks[1], marks[2], *[image] * 6, marks[3], 7, marks[2]]
    start = len(ids)
    ids += [*order.tokens(grid, 18, heard, 1.0), marks[3], 8, 9, 10]
    tokens = np.array(ids)
    places = [np.flatnonzero(tokens == token) for token in (image, video, sound)]
    late = places[2] > start
    pixels = np.zeros(0, np.float32)
    media = [
        SequenceMedia(b"s", places[2][~late], pixels, (1, short, 0)),
        SequenceMedia(b"i", places[0], pixels, (1, 4, 6)),
        SequenceMedia(b"v", places[1], pixels, grid, seconds_per_grid=1.0),
        SequenceMedia(b"t", places[2][late], pixels, (1, frames, 0), within=True),
    ]
    tower: Any = SimpleNamespace(tokens_per_second=rate)
    found = rule(media, AXES, tower).of(np.arange(len(ids)))
    theirs, _ = model.get_rope_index(
        torch.tensor([ids]),
        image_grid_thw=torch.tensor([[1, 4, 6]]),
        video_grid_thw=torch.tensor([grid]),
        attention_mask=torch.ones(1, len(ids)),
        use_audio_in_video=True,
        audio_seqlens=torch.tensor([short, frames]),
        second_per_grids=torch.tensor([1.0]),
    )
    assert found.tolist() == theirs[:, 0].tolist()


def test_others_among_a_video_and_its_sound() -> None:
    video = item(1, (1, 4, 4))
    sound = replace(video, positions=np.array([6, 7]), grid=(1, 8, 0), within=True)
    with pytest.raises(ValueError, match="others among them"):
        axis_positions([video, sound])
