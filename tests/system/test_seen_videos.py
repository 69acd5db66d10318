"""Videos in conversations, through every service: the numbers are those of transformers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_llava, tiny_videos
from tests.support.tiny_dual_encoders import data_url, picture
from tests.support.video_clips import data_url as clip_url
from tests.support.video_clips import decoded, encoded, moving

COUNT, FPS = 10, 8
CLIP = encoded(moving(8, 16, 48), fps=FPS)
OTHER = encoded(moving(8, 16, 48, seed=2), fps=FPS)
FRAMES, IMAGE = decoded(CLIP), picture(40, 30, 1)


def seen(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": clip_url(data)}}


def image_part() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(IMAGE)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def ask(here: Whole, content: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    body = {"model": here.model, "messages": [{"role": "user", "content": content}]}
    body |= {"temperature": 0, "max_tokens": COUNT, "logprobs": True, "ignore_eos": True}
    answer = here.post("/v1/chat/completions", body | {"return_token_ids": True} | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tokens_of(answer: dict[str, Any]) -> list[int]:
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


@pytest.mark.row("F02.04", "F02.05", "F02.11", "F01.15", "F01.16", "F01.10", "V23")
def test_videos_of_every_family(tmp_path: Path) -> None:
    """A video between an image and text, cut by steps of 12 tokens and pages of 4: the tokens and
    numbers of transformers. Again, from the prefix cache; another video is another answer."""
    settings = {"block_size": 4, "max_num_batched_tokens": 12, "max_num_seqs": 4}
    for name in tiny_videos.KINDS:
        folder = tmp_path / name
        model = tiny_videos.save(folder, name)
        # transformers confuses clips and images in GLM-4.1V, and newlines in OneVision.
        first = [IMAGE] if name.startswith("qwen") else []
        parts = ["<|user|>one ", *first, " and ", (FRAMES, float(FPS)), "two?<|end|><|assistant|>"]
        tokens, expected = tiny_videos.continued(model, folder, name, parts, COUNT)
        content = [said("one "), *([image_part()] if first else []), said(" and "), seen(CLIP)]
        content.append(said("two?"))
        with whole(folder, worker=settings) as here:
            answer = ask(here, content)
            assert tokens_of(answer) == tokens, name
            numbers = [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
            assert numbers == pytest.approx(expected, abs=2e-2), name
            again = ask(here, content)
            assert tokens_of(again) == tokens, name
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            content[-2] = seen(OTHER)
            other = ask(here, content)
            assert tokens_of(other) != tokens, name


def upload(here: Whole, data: bytes) -> str:
    sent = here.run(
        lambda: here.client.post(
            "/v1/files", data={"purpose": "vision"}, files={"file": ("a", data)}
        )
    )
    assert sent.status_code == 200, sent.text
    name: str = sent.json()["id"]
    return name


def test_uploaded_files_are_seen_as_what_is_sent(tmp_path: Path) -> None:
    tiny_videos.save(tmp_path, "qwen2-vl")
    with whole(tmp_path) as here:
        wanted = ask(here, [image_part(), seen(CLIP), said("?")])
        picture_file = {"file_id": upload(here, png(IMAGE))}
        clip = {"type": "video_url", "video_url": {"file_id": upload(here, CLIP)}}
        for part in (
            {"type": "input_image", **picture_file},
            {"type": "image_file", "image_file": picture_file},
        ):
            found = ask(here, [part, clip, said("?")])
            assert tokens_of(found) == tokens_of(wanted)
            assert found["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
            talk = [{"role": "user", "content": [part, said("?")]}]
            assert here.post("/tokenize", {"messages": talk}).status_code == 200
        for name, words in (("file-0", "No such File"), ("../x", "Invalid")):
            part = {"type": "image_file", "image_file": {"file_id": name}}
            talk = [{"role": "user", "content": [image_part(), part]}]
            answer = here.post("/v1/chat/completions", {"model": here.model, "messages": talk})
            assert answer.status_code == 400 and words in answer.text, answer.text
            assert (error_of(answer)["param"] or "").startswith("messages[0].content[1]")


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def test_what_is_refused(tmp_path: Path) -> None:
    """A bad video is named by its place; a model that takes images and no video says so."""
    tiny_llava.save(tmp_path / "llava")
    tiny_videos.save(tmp_path / "qwen", "qwen2-vl")
    with whole(tmp_path / "qwen") as here:
        for url, code in (
            (clip_url(CLIP[:-900]), "video_parse_error"),
            (clip_url(b"hello"), "invalid_video_format"),
            (clip_url(CLIP, "image/png"), "invalid_base64_video"),
            ("http://127.0.0.1/a.mp4", "media_not_allowed"),
            ("data:video/mp4;base64,\u00e9", "invalid_video_url"),
        ):
            bad = {"type": "video_url", "video_url": {"url": url}}
            talk = [{"role": "user", "content": [seen(CLIP), bad]}]
            answer = here.post("/v1/chat/completions", {"model": here.model, "messages": talk})
            assert answer.status_code == 400, answer.text
            error = error_of(answer)
            assert (error["code"], error["param"]) == (code, "messages[0].content[1].video_url")
        talk = [{"role": "system", "content": [seen(CLIP)]}, {"role": "user", "content": "?"}]
        answer = here.post("/v1/chat/completions", {"model": here.model, "messages": talk})
        assert answer.status_code == 400 and "cannot hold videos" in answer.text
    with whole(tmp_path / "llava") as here:
        talk = [{"role": "user", "content": [seen(CLIP)]}]
        answer = here.post("/v1/chat/completions", {"model": here.model, "messages": talk})
        assert answer.status_code == 400
        assert "does not take video input. It takes text and image." in answer.text
