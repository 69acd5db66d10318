"""Models with a tower for texts and one for images, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.dual_encoder import DualEncoderModel
from baton_worker.models.families.clip import clip
from baton_worker.spec.hf_config import read_config
from tests.support import tiny_dual_encoders, tiny_encoders

CPU = torch.device("cpu")
ARCHITECTURES = ("CLIPModel", "SiglipModel")
TEXTS = [[0, 9, 30, 7, 1], [0, 1], [0, *range(40, 62), 1], [5, 1], [0, 200, 1, 30, 1]]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> DualEncoderModel:
    model = load_model(folder, BuildContext(CPU, dtype)).model
    assert isinstance(model, DualEncoderModel)
    return model


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, DualEncoderModel]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return tiny_dual_encoders.save(folder, request.param), load(folder)


@torch.inference_mode()
def text_features(oracle: Any, text: list[int]) -> torch.Tensor:
    padding = 24 - len(text) if oracle.config.model_type == "siglip" else 0
    ids = torch.tensor([text + [1] * padding])
    features: torch.Tensor = oracle.get_text_features(ids).pooler_output[0]
    return features


@torch.inference_mode()
def image_features(oracle: Any, pixels: torch.Tensor) -> torch.Tensor:
    features: torch.Tensor = oracle.get_image_features(pixels[None]).pooler_output[0]
    return features


def images(count: int) -> torch.Tensor:
    side = tiny_dual_encoders.IMAGE
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def embed(model: DualEncoderModel, texts: list[list[int]]) -> torch.Tensor:
    return model.embed_texts([torch.tensor(text) for text in texts])


def test_texts_of_any_length_together_and_alone(pair: tuple[Any, DualEncoderModel]) -> None:
    oracle, model = pair
    together = embed(model, TEXTS)
    for text, ours in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(ours, text_features(oracle, text), atol=1e-4, rtol=1e-4)
        assert (ours - embed(model, [text])[0]).abs().max() < 1e-5
    assert torch.pdist(together).min() > 0.1, "the vectors of these texts do not differ"


def test_images_together_and_alone(pair: tuple[Any, DualEncoderModel]) -> None:
    oracle, model = pair
    pixels = images(3)
    together = model.embed_images(pixels)
    for image, ours in zip(pixels, together, strict=True):
        torch.testing.assert_close(ours, image_features(oracle, image), atol=1e-4, rtol=1e-4)
        assert (ours - model.embed_images(image[None])[0]).abs().max() < 1e-5
    assert torch.pdist(together).min() > 0.1, "the vectors of these images do not differ"


def test_progress_counts_the_layers_of_both(pair: tuple[Any, DualEncoderModel]) -> None:
    _, model = pair
    before = model.progress
    embed(model, TEXTS[:1])
    model.embed_images(images(1))
    assert model.progress == before + 6


def test_the_oldest_clip_checkpoints_end_at_their_highest_id(tmp_path: Path) -> None:
    """Their eos_token_id says 2, which their tokenizer does not end with."""
    oracle = tiny_dual_encoders.save(tmp_path, "CLIPModel", text_config={"eos_token_id": 2})
    text = [0, 2, 17, 319, 40]
    ours = embed(load(tmp_path), [text])[0]
    torch.testing.assert_close(ours, text_features(oracle, text), atol=1e-4, rtol=1e-4)
    assert (ours - text_features(oracle, text[:4])).abs().max() < 1e-4


def test_ids_without_an_end_count_to_their_last(tmp_path: Path) -> None:
    tiny_dual_encoders.save(tmp_path, "CLIPModel")
    model = load(tmp_path)
    assert not torch.equal(embed(model, [[0, 9, 30]]), embed(model, [[0, 9, 31]]))


def test_what_a_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    """Old configs hold what differs from the defaults, and some of it under an older name."""
    tiny_dual_encoders.save(tmp_path, "CLIPModel")
    whole = read_config(tmp_path)
    part = read_config(tmp_path)
    for tower in (part.text_config, part.vision_config):
        del tower.hidden_act, tower.layer_norm_eps
    part.text_config_dict, part.text_config = part.text_config, None
    assert clip(part) == clip(whole)


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("SiglipModel", {"text_config": {"projection_size": 32}}, "they cannot be compared"),
        ("SiglipModel", {"vision_config": {"vision_use_head": False}}, "vision_use_head is false"),
        ("CLIPModel", {"vision_config": {"num_channels": 4}}, "num_channels 4 is not supported"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], words: str
) -> None:
    tiny_dual_encoders.save(tmp_path, architecture, **changes)
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tiny_dual_encoders.save(tmp_path, "SiglipModel")
    tiny_encoders.rewrite(tmp_path, {"vision_model.head.probe": "vision_model.head.prob"})
    with pytest.raises(ModelError, match=r"missing: vision_model\.head\.probe"):
        load(tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_and_rounded_weights_are_close(tmp_path: Path, architecture: str) -> None:
    oracle = tiny_dual_encoders.save(tmp_path, architecture)
    pixels, text = images(2), TEXTS[2]
    for dtype, quantize in ((torch.bfloat16, "none"), (torch.float32, "int8")):
        model = load_model(tmp_path, BuildContext(CPU, dtype, quantization=quantize)).model
        assert isinstance(model, DualEncoderModel)
        seen, read = model.embed_images(pixels).float(), embed(model, [text])[0].float()
        for image, ours in zip(pixels, seen, strict=True):
            assert F.cosine_similarity(ours, image_features(oracle, image), dim=0) > 0.99
        assert F.cosine_similarity(read, text_features(oracle, text), dim=0) > 0.99
