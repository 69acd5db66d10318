"""Which media a model takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from baton.errors import InvalidRequest, ModelError
from baton.protocol import MediaItem
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.media_settings import ProcessorKwargs
from baton_mm_preprocess.model_info import (
    Images,
    Model,
    modalities,
    read_model,
)
from baton_mm_preprocess.processors.fixed_size import FixedSize
from tests.support import tiny_omni, tiny_videos
from tests.support.tiny_dual_encoders import PROCESSORS, TRAITS

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


def test_a_folder_in_the_format_of_mistral_is_text(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    model = read_model(tmp_path, "m")
    assert model.modalities == () and model.images is None


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
    (tmp_path / "config.json").write_text('{"architectures": 3}')
    with pytest.raises(ModelError, match=r"configs in .* that it cannot have"):
        read_model(tmp_path, "m")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model("m", "Plain"), "The model m does not take image input. It takes text only."),
        (Model("m", "Ears", ("audio",)), "m does not take image input. It takes text and audio."),
        (Model("m", "Eyes", ("image",)), "does not support media for the architecture Eyes yet"),
        (
            Model("m", "Eyes", ("image",), troubles={"image": "it squints"}),
            "take images as it is: it squints.",
        ),
    ],
)
def test_refusals_say_why(model: Model, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.check(IMAGE)
    assert words in caught.value.message
    assert (caught.value.status, caught.value.code) == (400, "unsupported_value")
    assert caught.value.param == IMAGE.param


@pytest.mark.parametrize(("architecture", "placeholders"), [("CLIPModel", 50), ("SiglipModel", 16)])
def test_a_model_of_squares(tmp_path: Path, architecture: str, placeholders: int) -> None:
    """30 pixels in squares of 4 and a class token, or of 7; what is left over counts nothing."""
    save(tmp_path, architecture)
    model = read_model(tmp_path, "m")
    assert model.modalities == ("image",) and not model.troubles
    images, steps = model.images, read_processor(PROCESSORS[architecture], "")
    assert images is not None and len(model.identity) == 32
    processor = FixedSize(steps, placeholders)
    assert images == Images(processor, folder=tmp_path)
    assert images.tokens((1, 1, 1), 3) == [0, 0, 0]
    model.check(IMAGE)
    with pytest.raises(InvalidRequest, match="does not take video input"):
        model.check(MediaItem("video", "", ""))


def test_a_family_frames_its_images(tmp_path: Path) -> None:
    config = {"architectures": ["InternVLForConditionalGeneration"], "image_token_id": 9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {"image_processor": {"size": {"height": 8, "width": 8}}, "image_seq_length": 2}
    (tmp_path / "processor_config.json").write_text(json.dumps(given))
    images = read_model(tmp_path, "m").images
    assert images is not None and (images.marker, images.image_token) == (9, 9)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        images.tokens((1, 1, 1), 2)
    tokenizer = Tokenizer(WordLevel({"<img>": 3, "</img>": 4}, unk_token="<img>"))
    tokenizer.add_special_tokens(["<img>", "</img>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert images.tokens((1, 1, 1), 2) == [3, 9, 9, 4]


def test_which_tokens_see_one_another() -> None:
    """Each run of image tokens, in models with attention in both directions."""
    images = Images(None, image_token=9, bidirectional=True)  # type: ignore[arg-type]
    assert images.spans([9, 9, 1, 9, 2]) == ((0, 2), (3, 1)) and images.spans([1, 2]) == ()
    assert replace(images, bidirectional=False).spans([9, 9]) == ()


def save(folder: Path, architecture: str, **vision: Any) -> dict[str, Any]:
    """The files of a tiny model that this service reads."""
    config = {"architectures": [architecture]} | TRAITS[architecture]
    config["vision_config"] = config["vision_config"] | vision
    (folder / "config.json").write_text(json.dumps(config))
    processor = folder / "preprocessor_config.json"
    processor.write_text(json.dumps(PROCESSORS[architecture]))
    return config


def test_newer_and_older_spellings(tmp_path: Path) -> None:
    config = save(tmp_path, "CLIPModel")
    expected = read_model(tmp_path, "m")
    (tmp_path / "preprocessor_config.json").unlink()
    nested = {"image_processor": PROCESSORS["CLIPModel"], "tokenizer": {}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    config["vision_config_dict"] = config.pop("vision_config")
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_model(tmp_path, "m")
    assert found.images is not None and found.images == expected.images
    assert found.identity != expected.identity


@pytest.mark.parametrize(
    ("vision", "file", "words"),
    [
        ({}, None, "it has no preprocessor_config.json"),
        ({}, "{", "preprocessor_config.json of m cannot be read"),
        ({}, '{"image_processor_type": "X"}', "image processor X is not supported"),
        ({}, '{"do_center_crop": false}', "makes images of any size, and its config wants"),
        ({"image_size": 31}, "same", "makes images of (30, 30), and its config wants (31, 31)"),
    ],
)
def test_trouble_with_images_leaves_the_texts(
    vision: dict[str, Any], file: str | None, words: str, tmp_path: Path
) -> None:
    save(tmp_path, "CLIPModel", **vision)
    place = tmp_path / "preprocessor_config.json"
    if file is None:
        place.unlink()
    elif file != "same":
        place.write_text(file)
    model = read_model(tmp_path, "m")
    assert model.images is None and words in model.troubles["image"]


def test_a_real_text_model(stories: Path) -> None:
    assert read_model(stories, "stories") == Model("stories", "LlamaForCausalLM")


def test_settings_in_code_need_no_file(tmp_path: Path) -> None:
    """As Qwen-VL's, which publishes no preprocessor_config.json; others are refused without one."""
    visual = {"image_size": 28, "n_queries": 4, "image_start_id": 5}
    config = {"architectures": ["QwenVLForConditionalGeneration"], "visual": visual}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(WordLevel({"a": 0}, "a"))
    tokenizer.add_special_tokens(["<imgpad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    images = read_model(tmp_path, "m").images
    assert images is not None and images.image_token == 1
    assert isinstance(images.processor, FixedSize) and images.processor.steps.shape == (28, 28)
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Ovis"]}))
    assert "no preprocessor_config.json" in read_model(tmp_path, "m").troubles["image"]


def test_a_model_that_hears(tmp_path: Path) -> None:
    """Its files decide the identity of sounds, and what is missing is said."""
    config = {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_config": {},
        "audio_token_index": 7,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    sound, image = MediaItem("audio", "", "a"), MediaItem("image", "", "i")
    model = read_model(tmp_path, "m")
    assert model.modalities == ("audio",) and not model.takes_files and not model.identity
    with pytest.raises(InvalidRequest, match="cannot take audio as it is: it has no preproc"):
        model.check(sound)
    extractor = tmp_path / "preprocessor_config.json"
    extractor.write_text(json.dumps({"feature_size": 80}))
    model = read_model(tmp_path, "m")
    assert model.audio is not None and model.images is None and model.takes_files
    model.check(sound)
    with pytest.raises(InvalidRequest, match="does not take image input"):
        model.check(image)
    extractor.write_text(json.dumps({"feature_size": 128}))
    assert read_model(tmp_path, "m").identity != model.identity


def test_the_sound_of_videos(tmp_path: Path) -> None:
    """Where the family takes both as one, as the request or else the operator says; elsewhere it is
    refused by the field, and as a setting of the operator at the start."""
    tiny_omni.save(tmp_path / "omni", "qwen3-omni")
    clip, heard, quiet = (MediaItem("video", "", "v", sound) for sound in (None, True, False))
    model = read_model(tmp_path / "omni", "m")
    model.check(heard)
    assert [model.wants_sound(item) for item in (clip, heard, quiet)] == [False, True, False]
    assert not model.wants_sound(MediaItem("image", "", "i"))
    model = read_model(tmp_path / "omni", "m", ProcessorKwargs(sound=True))
    assert [model.wants_sound(item) for item in (clip, heard, quiet)] == [True, True, False]
    # A tokenizer without the token behind both, which costs frames alone nothing.
    changes = {"tokenizer": ("<|audio_end", "<|over"), "config": ("audio_end_token", "other")}
    for name, change in changes.items():
        file = tmp_path / "omni" / f"{name}.json"
        file.write_text(file.read_text().replace(*change))
    model = read_model(tmp_path / "omni", "m")
    model.check(quiet)
    with pytest.raises(InvalidRequest, match=r"videos: its tokenizer has no token <\|audio_end"):
        model.check(heard)
    tiny_videos.save(tmp_path / "deaf", "qwen2-vl")
    model = read_model(tmp_path / "deaf", "m")
    model.check(quiet)
    with pytest.raises(InvalidRequest, match="does not hear the sound of videos") as caught:
        model.check(heard)
    assert caught.value.param == "mm_processor_kwargs"
    with pytest.raises(ModelError, match="does not hear the sound of videos"):
        read_model(tmp_path / "deaf", "m", ProcessorKwargs(sound=True))
