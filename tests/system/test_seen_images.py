"""Images in conversations, through every service: the numbers are those of transformers."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from baton.protocol import MediaItem, Submit
from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_grids, tiny_llava, tiny_models
from tests.support.tiny_dual_encoders import data_url, picture

COUNT = 12
RED, BLUE = picture(40, 30, 1), picture(30, 50, 2)


def seen(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


TALK: list[dict[str, Any]] = [
    {"role": "user", "content": [said("one "), seen(RED), said(" and "), seen(BLUE), said("?")]},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": [seen(RED), said("again")]},
]
WRITTEN = (
    "<|user|>one <image> and <image>?<|end|><|assistant|>two<|end|>"
    "<|user|><image>again<|end|><|assistant|>"
)


def body_of(here: Whole, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    body = {"model": here.model, "messages": messages, "temperature": 0, "max_tokens": COUNT}
    return body | {"logprobs": True, "ignore_eos": True, "return_token_ids": True} | fields


def ask(here: Whole, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = here.post("/v1/chat/completions", body_of(here, messages, **fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tokens_of(answer: dict[str, Any]) -> list[int]:
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


def numbers(answer: dict[str, Any]) -> list[float]:
    return [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]


def cached(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def encoded(here: Whole) -> int:
    assert here.worker.encoder is not None
    return here.worker.encoder.num_encoded


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llava")
    return folder, tiny_llava.save(folder)


@pytest.fixture(scope="module")
def here(llava: tuple[Path, Any]) -> Iterator[Whole]:
    """Steps of 12 tokens cut every image of 16; pages of 4."""
    settings = {"block_size": 4, "max_num_batched_tokens": 12, "max_num_seqs": 4}
    with whole(llava[0], worker=settings) as here:
        yield here


@pytest.mark.row("F01.01")
def test_a_conversation_with_images(llava: tuple[Path, Any], here: Whole) -> None:
    """Several in a message, in two turns, each cut by the end of a step, one of them twice: the
    tokens and numbers of transformers. Again, nothing is computed, and no image encoded."""
    tokens, expected = tiny_llava.continued(llava[1], llava[0], WRITTEN, (RED, BLUE, RED), COUNT)
    before = encoded(here)
    answer = ask(here, TALK)
    assert tokens_of(answer) == tokens and cached(answer) == 0
    assert numbers(answer) == pytest.approx(expected, abs=1e-4)
    assert encoded(here) - before == 2, "one of the three is the first one again"
    again = ask(here, TALK)
    assert tokens_of(again) == tokens and numbers(again) == numbers(answer)
    assert cached(again) == again["usage"]["prompt_tokens"] - 1
    assert encoded(here) - before == 2
    choices = ask(here, TALK, n=2, temperature=1.0, seed=5)["choices"]
    alone = ask(here, TALK, n=1, temperature=1.0, seed=5)["choices"]
    assert choices[0]["token_ids"] == alone[0]["token_ids"] != choices[1]["token_ids"]


def test_pixels_of_another_host_go_past_the_scheduler(
    llava: tuple[Path, Any], here: Whole, run_dir: Path
) -> None:
    """Without shared memory the worker takes each image once from its gateway: the same tokens."""
    settings = {"bind_pixels": "tcp://127.0.0.1:*", "trusted_network": True, "run_dir": run_dir}
    with whole(llava[0], worker={"block_size": 4}, **settings) as apart:
        [socket] = run_dir.glob("pixels-*.sock")
        socket.unlink()
        assert tokens_of(ask(apart, TALK)) == tokens_of(ask(here, TALK))
        sent = [m for m in apart.engine.scheduler.seen if isinstance(m, Submit)]
        blobs = [item.pixels for m in sent for item in m.media]
        assert blobs and not any(blob.data for blob in blobs) and all(b.token for b in blobs)


@pytest.mark.row("F15.04")
def test_drafts_grammars_and_preemption_beside_images_change_nothing(
    llava: tuple[Path, Any], here: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are made whatever steps cost here. There are pages for one long answer, so another
    sequence is preempted."""
    monkeypatch.setattr(
        "baton_worker.engine.speculation.step_timing.measure", lambda step, resolved: {}
    )
    constrained = {"structured_outputs": {"regex": "(ab|cd)(ef)?[a-f]{2,6}"}}
    asked: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 3},
        constrained,
        {"max_tokens": 40},
    ]
    expected = [tokens_of(ask(here, TALK, **fields)) for fields in asked]
    settings = {
        "block_size": 4,
        "max_num_batched_tokens": 12,
        "max_num_seqs": 2,
        "num_gpu_blocks_override": 28,
        "speculative_config": '{"num_speculative_tokens": 4, "prompt_lookup_min": 1}',
    }
    with whole(llava[0], worker=settings) as drafting:
        bodies = [body_of(drafting, TALK, **fields) for fields in asked]
        for _ in range(2):
            answers = drafting.together(
                [drafting.client.post("/v1/chat/completions", json=body) for body in bodies]
            )
            assert [tokens_of(answer.json()) for answer in answers] == expected
        counters = drafting.engine.scheduler.state.counters  # type: ignore[attr-defined]
        assert counters.num_drafts > 0 and counters.preemptions > 0


@pytest.mark.row("F02.04")
def test_embeddings_of_a_client_are_an_image(here: Whole) -> None:
    """What the tower makes of an image, sent in its place, as safetensors and as numpy writes it:
    the same tokens, beside an image, and again from the cache; other embeddings, other tokens."""
    assert here.worker.encoder is not None
    prepared = here.engine.preprocessor._look(1, MediaItem("image", data_url(RED), ""))  # type: ignore[attr-defined]
    pixels = np.frombuffer(prepared.tensor.data, "<f4").reshape(prepared.tensor.shape)
    [made] = here.worker.encoder.tower.encode_media([torch.from_numpy(pixels.copy())], [(1, 1, 1)])
    wanted, before = tokens_of(ask(here, TALK)), encoded(here)
    file = io.BytesIO()
    np.save(file, made[None].numpy())
    for data in (save({"image_embeds": made.contiguous()}), file.getvalue()):
        for again in (False, True):
            talk = [*TALK[:2], {"role": "user", "content": [embeds(data), said("again")]}]
            answer = ask(here, talk)
            assert tokens_of(answer) == wanted, "the last of three images"
            assert not again or cached(answer) == answer["usage"]["prompt_tokens"] - 1
    assert encoded(here) == before
    first, other = (
        ask(here, [{"role": "user", "content": [embeds(save({"x": made * n}))]}]) for n in (1, 9)
    )
    assert tokens_of(first) != tokens_of(other)
    whole_rows = ask(here, [{"role": "user", "content": [embeds(save({"x": made[:5].clone()}))]}])
    assert whole_rows["prompt_token_ids"].count(289) == 5, "as many tokens as embeddings"
    refused: list[tuple[Any, str]] = [
        (save({"x": made[:, :-1].contiguous()}), "this model takes [n, 48]"),
        (save({"x": made * float("nan")}), "not finite"),
        (save({"x": made.double()}), "no safetensors file"),
        (save({"x": made, "y": made.clone()}), "one tensor"),
        (b"PK\x03\x04archive/data.pkl", "torch.save writes code"),
        (b"\x93NUMPY", "cannot be read"),
        ({"image_embeds": {"a": "b"}}, "a base64 string of one tensor"),
        ({"image_embeds": "?"}, "not base64"),
        ({}, "Missing required parameter"),
    ]
    for given, why in refused:
        part = embeds(given) if isinstance(given, bytes) else {"type": "image_embeds", **given}
        body = {"model": here.model, "messages": [{"role": "user", "content": [part]}]}
        error = error_of(answer := here.post("/v1/chat/completions", body))
        assert answer.status_code == 400 and why in error["message"], (why, error)
        assert error["param"] == "messages[0].content[0].image_embeds"


def embeds(data: bytes) -> dict[str, Any]:
    return {"type": "image_embeds", "image_embeds": base64.b64encode(data).decode()}


def test_images_differ_where_their_tokens_do_not(llava: tuple[Path, Any], here: Whole) -> None:
    """Cached pages of one image are never those of another, alike as their placeholders are; what
    stands before the image is shared."""
    answers = []
    for image in (RED, BLUE):
        talk = [{"role": "user", "content": [said("what is seen here? "), seen(image)]}]
        written = "<|user|>what is seen here? <image><|end|><|assistant|>"
        tokens, _ = tiny_llava.continued(llava[1], llava[0], written, (image,), COUNT)
        answers.append(ask(here, talk))
        assert tokens_of(answers[-1]) == tokens
    first, second = (a["prompt_token_ids"] for a in answers)
    assert first == second and tokens_of(answers[0]) != tokens_of(answers[1])
    assert 0 < cached(answers[1]) <= first.index(llava[1].config.image_token_index)


def test_images_of_other_apis_are_those_of_a_chat(here: Whole) -> None:
    """The Responses API, with an image in the output of a function; the Messages API; and their
    tokens are counted."""
    url, hello = data_url(RED), "what?"
    talk = [{"role": "user", "content": [said(hello), seen(RED)]}]
    wanted = ask(here, talk)
    text, count = wanted["choices"][0]["message"]["content"], wanted["usage"]["prompt_tokens"]
    parts = [{"type": "input_text", "text": hello}, {"type": "input_image", "image_url": url}]
    fields = {"model": here.model, "temperature": 0, "max_output_tokens": COUNT, "ignore_eos": True}
    body = fields | {"input": [{"role": "user", "content": parts}]}
    answer = here.post("/v1/responses", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][-1]["content"][0]["text"] == text
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    answer = here.post("/v1/responses", fields | {"input": [call, output]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["input_tokens"] > 16
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks = [{"type": "text", "text": hello}, {"type": "image", "source": source}]
    asked = {"model": here.model, "messages": [{"role": "user", "content": blocks}]}
    answer = here.post("/v1/messages/count_tokens", asked)
    assert answer.json() == {"input_tokens": count}, answer.text
    assert here.post("/tokenize", {"messages": talk}).json()["count"] == count
    answer = here.post("/v1/messages", asked | {"temperature": 0, "max_tokens": COUNT})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


def test_a_client_cannot_write_an_image(llava: tuple[Path, Any], here: Whole) -> None:
    """What looks like the placeholder in a text stays text, beside an image too."""
    talk = [{"role": "user", "content": [said("<image>"), seen(RED)]}]
    found = ask(here, talk)["prompt_token_ids"]
    token = llava[1].config.image_token_index
    assert found.count(token) == 16
    bare = [{"role": "user", "content": "<image>"}]
    assert token not in ask(here, bare)["prompt_token_ids"]


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({"url": "data:image/png;base64,aGk="}, "invalid_image_format", "image_url"),
        ({"url": data_url(RED)[:-400]}, "image_parse_error", "image_url"),
        ({"url": data_url(Image.new("1", (9_000, 9_000)))}, "image_too_large", "image_url"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "media_not_allowed", "image_url"),
        ({"url": "data:image/png;base64,\u00e9"}, "invalid_image_url", "image_url"),
        ({"url": data_url(RED), "detail": "huge"}, "invalid_value", "image_url.detail"),
    ],
)
def test_a_bad_image_is_a_refusal_of_its_request_alone(
    here: Whole, part: dict[str, Any], code: str, param: str
) -> None:
    bad = {"type": "image_url", "image_url": part}
    body = {"model": here.model, "messages": [{"role": "user", "content": [seen(RED), bad]}]}
    error = error_of(answer := here.post("/v1/chat/completions", body))
    assert answer.status_code == 400, answer.text
    assert (error["code"] or "invalid_value", error["param"]) == (
        code,
        f"messages[0].content[1].{param}",
    )
    for role in ("system", "assistant"):
        talk = [{"role": role, "content": [seen(RED)]}, {"role": "user", "content": "?"}]
        answer = here.post("/v1/chat/completions", {"model": here.model, "messages": talk})
        assert answer.status_code == 400 and "cannot hold images" in answer.text


def test_a_template_of_strings_has_images_where_they_stand(tmp_path: Path) -> None:
    """It knows no parts; the placeholder is written for it. One that drops images is refused."""
    tiny_llava.save(tmp_path / "strings", template=tiny_models.CHAT_TEMPLATE)
    dropping = "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}"
    tiny_llava.save(tmp_path / "drops", template=dropping + "{% endfor %}")
    with whole(tmp_path / "strings") as here:
        talk = [{"role": "user", "content": [said("a"), seen(RED), said("b")]}]
        ids = ask(here, talk)["prompt_token_ids"]
        text = here.post("/detokenize", {"tokens": [i for i in ids if i != 289]}).json()["prompt"]
        assert ids.count(289) == 16 and text == "<|user|>a\n\nb<|end|><|assistant|>"
    with whole(tmp_path / "drops") as here:
        answer = here.post("/v1/chat/completions", {"model": here.model, "messages": talk})
        assert answer.status_code == 400 and "written 0 placeholders" in answer.text


def test_a_text_model_sees_no_image(tmp_path: Path) -> None:
    tiny_models.save_model(tmp_path)
    with whole(tmp_path) as here:
        body = {"model": here.model, "messages": [{"role": "user", "content": [seen(RED)]}]}
        answer = here.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert "does not take image input. It takes text only." in error_of(answer)["message"]
        assert not any(isinstance(message, Submit) for message in here.engine.scheduler.seen)


@pytest.mark.row("F02.04", "V21", "V50")
def test_images_with_positions_on_several_axes(tmp_path: Path) -> None:
    """Of any size, two of them cut by steps of 12 tokens, behind an answer; with embeddings behind
    several layers in Qwen3-VL. Decode steps are replayed behind them."""
    settings = {"block_size": 4, "max_num_batched_tokens": 12, "max_num_seqs": 4}
    for name in tiny_grids.PROCESSORS:
        folder = tmp_path / name
        model = tiny_grids.save(folder, name)
        tokens, expected = tiny_grids.continued(
            model, folder, name, WRITTEN, (RED, BLUE, RED), COUNT
        )
        with whole(folder, worker=settings) as here:
            answer = ask(here, TALK)
            assert tokens_of(answer) == tokens, name
            assert numbers(answer) == pytest.approx(expected, abs=1e-3), name
            again = ask(here, TALK)
            assert tokens_of(again) == tokens and cached(again) > 0, name
