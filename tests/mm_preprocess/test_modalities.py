"""Which media a model takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import InvalidRequest, ModelError
from baton.protocol import MediaItem
from baton_mm_preprocess.modalities import Model, modalities, read_model

IMAGE = MediaItem("image", "data:image/png;base64,", "messages[0].content[1]")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hidden_size": 64}, ()),
        ({"vision_config": {}, "image_token_id": 5, "video_token_id": 6}, ("image", "video")),
        ({"vision_config": {}}, ("image",)),
        ({"mm_vision_tower": "clip"}, ("image",)),
        ({"audio_config": {"d_model": 8}}, ("audio",)),
        ({"num_mel_bins": 80}, ("audio",)),
        ({"vision_config": None}, ()),
        (
            {"thinker_config": {"vision_config": {}, "audio_config": {}, "video_token_id": 1}},
            ("image", "video", "audio"),
        ),
    ],
)
def test_configurations(config: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert modalities(config) == expected


def test_a_folder(tmp_path: Path) -> None:
    config = {"architectures": ["SeeingModel"], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path, "m") == Model("m", "SeeingModel", ("image",))


def test_a_gguf_file_holds_no_encoder(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert read_model(file, "m").modalities == ()


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_broken_folder_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json of m"):
        read_model(tmp_path, "m")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model("m", "Plain"), "The model m does not take image input. It takes text only."),
        (Model("m", "Ears", ("audio",)), "m does not take image input. It takes text and audio."),
        (Model("m", "Eyes", ("image",)), "does not support media for the architecture Eyes yet"),
    ],
)
def test_refusals_say_why(model: Model, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.check(IMAGE)
    assert words in caught.value.message
    assert (caught.value.status, caught.value.code) == (400, "unsupported_value")
    assert caught.value.param == IMAGE.param


def test_a_real_text_model(stories: Path) -> None:
    assert read_model(stories, "stories") == Model("stories", "LlamaForCausalLM")
