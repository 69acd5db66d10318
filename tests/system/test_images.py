"""Texts and images to vectors that can be compared, through every service."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import Tokenizer

from baton.protocol import Submit
from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_dual_encoders, tiny_encoders, tiny_models
from tests.support.served_system import PATIENCE, Served, until
from tests.support.tiny_dual_encoders import data_url, picture

TEXTS = ["a", "The Baton", "the relay runner hands the baton to the next runner", "a?"]
COSINE, DIFFERENCE = 0.9999, 1e-3


class Reference:
    """A transformers model, its image processor, and the tokenizer beside it."""

    def __init__(self, folder: Path, model: Any) -> None:
        import transformers

        self._model = model
        self._pads = model.config.model_type == "siglip"
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if not self._pads:
            self._tokenizer.no_padding()
        kind = "SiglipImageProcessorPil" if self._pads else "CLIPImageProcessorPil"
        self._processor = getattr(transformers, kind).from_pretrained(folder)

    @torch.inference_mode()
    def text(self, text: str) -> torch.Tensor:
        ids = torch.tensor([self._tokenizer.encode(text).ids])
        features: torch.Tensor = self._model.get_text_features(ids).pooler_output[0]
        return features

    @torch.inference_mode()
    def image(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.stack(self._processor(image)["pixel_values"]))
        features: torch.Tensor = self._model.get_image_features(pixels).pooler_output[0]
        return features


def seen(url: str, **fields: Any) -> dict[str, Any]:
    """A request for the vector of an image."""
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"messages": [{"role": "user", "content": [part]}]} | fields


def look(here: Whole, image: Image.Image, **fields: Any) -> torch.Tensor:
    answer = here.post("/v1/embeddings", seen(data_url(image), model=here.model, **fields))
    assert answer.status_code == 200, answer.text
    return torch.tensor(answer.json()["data"][0]["embedding"])


def near(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    close = (ours - expected).abs().max() < DIFFERENCE
    return bool(close and F.cosine_similarity(ours, expected, dim=0) > COSINE)


def pictures() -> list[Image.Image]:
    return [picture(64, 48), picture(30, 30, 1), picture(17, 90, 2), picture(1, 1, 3)]


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param("CLIPModel", marks=pytest.mark.row("P16")),
        pytest.param("SiglipModel", marks=pytest.mark.row("P17")),
    ],
)
def test_texts_and_images_are_embedded(tmp_path: Path, architecture: str) -> None:
    """Equal to the reference; together as alone; longer texts than the rest beside images."""
    reference = Reference(tmp_path, tiny_dual_encoders.save(tmp_path, architecture))
    with whole(tmp_path, worker={"block_size": 4}) as here:
        together = [torch.tensor(e["embedding"]) for e in here.embed(TEXTS).json()["data"]]
        for text, ours in zip(TEXTS, together, strict=True):
            assert near(ours, F.normalize(reference.text(text), dim=0)), text
            alone = torch.tensor(here.embed(text).json()["data"][0]["embedding"])
            assert (ours - alone).abs().max() < 1e-5
        for image in pictures():
            expected = reference.image(image)
            assert near(look(here, image), F.normalize(expected, dim=0)), image.size
            raw = look(here, image, normalize=False)
            assert torch.allclose(raw, expected, atol=DIFFERENCE, rtol=1e-4)
        check_cosines(here, reference)


def check_cosines(here: Whole, reference: Reference) -> None:
    """/score compares a text with images; an image beside a text is refused by its path."""
    shown = [seen(data_url(image))["messages"][0] for image in pictures()[:2]]
    parts = [{"content": message["content"]} for message in shown]
    answer = here.post("/score", {"text_1": TEXTS[2], "text_2": [*parts, TEXTS[2]]}).json()
    text = reference.text(TEXTS[2])
    features = [*(reference.image(image) for image in pictures()[:2]), text]
    expected = [F.cosine_similarity(text, other, dim=0).item() for other in features]
    found = [entry["score"] for entry in answer["data"]]
    assert found == pytest.approx(expected, abs=DIFFERENCE)
    both = {"content": [{"type": "text", "text": "a"}, *parts[0]["content"]]}
    refused = here.post("/score", {"text_1": "a", "text_2": [both]})
    error = error_of(refused)
    assert (refused.status_code, error["param"]) == (400, "text_2[0].content")
    assert "embeds a text or one image" in error["message"]


@pytest.mark.parametrize("architecture", ["CLIPModel", "SiglipModel"])
def test_images_and_texts_in_one_step_are_what_they_are_alone(
    tmp_path: Path, architecture: str
) -> None:
    tiny_dual_encoders.save(tmp_path, architecture)
    with whole(tmp_path) as here:
        alone = [look(here, image) for image in pictures()]
        words = torch.tensor(here.embed(TEXTS[2]).json()["data"][0]["embedding"])

        bodies = [seen(data_url(image), model=here.model) for image in pictures()]
        bodies.insert(1, {"model": here.model, "input": TEXTS[2]})
        answers = here.together([here.client.post("/v1/embeddings", json=body) for body in bodies])
        together = [torch.tensor(answer.json()["data"][0]["embedding"]) for answer in answers]
        alone.insert(1, words)
        for ours, expected in zip(together, alone, strict=True):
            assert (ours - expected).abs().max() < 1e-5


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("siglip")
    tiny_dual_encoders.save(folder, "SiglipModel")
    with whole(folder) as here:
        yield here


def test_the_shape_of_an_answer(siglip: Whole) -> None:
    """An image costs its placeholders, and is answered with the fields that a text has."""
    url = data_url(picture(40, 30))
    answer = siglip.post("/v1/embeddings", seen(url, model=siglip.model)).json()
    [entry] = answer["data"]
    assert answer["usage"] == {"prompt_tokens": 16, "total_tokens": 16}
    assert (entry["object"], entry["index"], len(entry["embedding"])) == ("embedding", 0, 64)
    packed = seen(url, model=siglip.model, encoding_format="base64")
    coded = siglip.post("/v1/embeddings", packed).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == entry["embedding"]
    pooled = siglip.post("/pooling", seen(url)).json()
    assert pooled["data"][0]["data"] == entry["embedding"] and pooled["usage"] == answer["usage"]


def test_one_image_in_every_format_and_position(siglip: Whole) -> None:
    """Colours, depths and cameras differ, the picture does not."""
    flat = Image.new("RGB", (20, 10), (204, 51, 153))
    expected = look(siglip, flat)
    exif = Image.Exif()
    exif[0x0112] = 6
    urls = [
        data_url(flat, "GIF"),
        data_url(flat, "WEBP", lossless=True),
        data_url(flat.convert("RGBA")),
        data_url(flat.convert("P")),
        data_url(flat, exif=exif),
    ]
    for url in urls:
        answer = siglip.post("/v1/embeddings", seen(url, model=siglip.model)).json()
        assert torch.allclose(torch.tensor(answer["data"][0]["embedding"]), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64,aGk=", "invalid_image_format"),
        ("data:image/png;base64,!", "invalid_base64_image"),
        ("data:image/png;base64,", "empty_image_file"),
        (data_url(picture(40, 30))[:-400], "image_parse_error"),
        (data_url(Image.new("1", (1, 201))), "image_too_large"),
        (data_url(Image.new("1", (9_000, 9_000))), "image_too_large"),
        ("http://169.254.169.254/latest/meta-data", "media_not_allowed"),
        ("file:///etc/passwd", "invalid_image_url"),
    ],
)
def test_a_bad_image_is_named_before_any_worker_sees_it(siglip: Whole, url: str, code: str) -> None:
    before = len(siglip.engine.scheduler.seen)
    answer = siglip.post("/v1/embeddings", seen(url, model=siglip.model))
    error = error_of(answer)
    assert answer.status_code == 400 and error["code"] == code
    assert error["param"] == "messages[0].content[0].image_url"
    submitted = siglip.engine.scheduler.seen[before:]
    assert not any(isinstance(message, Submit) for message in submitted)


def test_a_text_model_takes_no_image(tmp_path: Path) -> None:
    tiny_encoders.save(tmp_path, "BertModel")
    with whole(tmp_path) as here:
        answer = here.post("/v1/embeddings", seen(data_url(picture(4, 4)), model=here.model))
        assert answer.status_code == 400
        assert "does not take image input. It takes text only." in error_of(answer)["message"]
        said = {"model": here.model, "messages": [{"role": "user", "content": "the baton"}]}
        answer = here.post("/v1/embeddings", said)
        assert answer.status_code == 400 and "chat template" in error_of(answer)["message"]


def test_messages_of_text_are_rendered(tmp_path: Path) -> None:
    """As vLLM does it: the vector is that of what the chat template writes."""
    tiny_models.save_checkpoint(tmp_path, "Qwen3ForCausalLM")
    tiny_models.save_tokenizer(tmp_path)
    with whole(tmp_path, worker={"task": "embed"}) as here:
        messages = [{"role": "user", "content": "the baton"}]
        asked = {"model": here.model, "messages": messages, "add_generation_prompt": True}
        shown = {"messages": messages, "add_generation_prompt": True}
        ids = here.post("/tokenize", shown).json()["tokens"]
        answer = here.post("/v1/embeddings", asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == len(ids)
        expected = here.embed(ids).json()["data"][0]["embedding"]
        assert answer.json()["data"][0]["embedding"] == pytest.approx(expected, abs=1e-5)


def replace(served: Served, service: str) -> None:
    """Kill a service, and wait for the next one."""
    old = served.pids()[service]
    os.kill(old, signal.SIGKILL)
    until(lambda: served.pids().get(service, old) != old, "it is started again")


@pytest.mark.slow
@pytest.mark.row("P16")
def test_processes_of_a_model_that_sees(tmp_path: Path, run_dir: Path) -> None:
    """Five of them and those that decode: vectors of both kinds, and a preprocessor that dies."""
    model = tmp_path / "clip"
    reference = Reference(model, tiny_dual_encoders.save(model, "CLIPModel"))
    served = Served(run_dir, model, "--worker.dtype", "float32")

    def post(**fields: Any) -> httpx.Response:
        body = {"model": "clip"} | fields
        return httpx.post(f"{served.url}/v1/embeddings", json=body, timeout=PATIENCE)

    try:
        served.ready()
        image = picture(64, 48)
        expected = F.normalize(reference.image(image), dim=0)
        for attempt in range(2):
            answer = post(**seen(data_url(image)))
            assert answer.status_code == 200, answer.text
            assert near(torch.tensor(answer.json()["data"][0]["embedding"]), expected)
            assert answer.json()["usage"]["prompt_tokens"] == 50
            refused = post(**seen("data:image/png;base64,aGk="))
            assert refused.status_code == 400, refused.text
            words = post(input=TEXTS).json()["data"]
            for text, entry in zip(TEXTS, words, strict=True):
                ours = torch.tensor(entry["embedding"])
                assert near(ours, F.normalize(reference.text(text), dim=0)), text
            if not attempt:
                replace(served, "mm-preprocess")
                until(lambda: post(**seen(data_url(image))).status_code == 200, "it answers")
        until(lambda: served.pages_held() == 0, "all pages are free")
    finally:
        served.close()
