"""A page to text, through every service: Nemotron Parse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer

from baton_mm_preprocess.model_info import read_model
from tests.fakes.whole_system import Whole, whole
from tests.oracles.towers.nemotron_parse import PAGE, Parse
from tests.support import tiny_models
from tests.support.tiny_dual_encoders import data_url, picture

COUNT = 8
WIDE, TALL = picture(70, 40, 1), picture(20, 30, 2)
START, PATH = "<|page|>", "/v1/chat/completions"
TEMPLATE = (
    "{%- for message in messages %}{% for part in message.content if part.type == 'image' %}"
    + START
    + "{% endfor %}{% for part in message.content if part.type == 'text' %}{{ part.text }}"
    "{% endfor %}{% endfor %}"
)


def ask(here: Whole, *images: Any) -> httpx.Response:
    seen = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    content = [*seen, {"type": "text", "text": "one two"}]
    body = {"model": here.model, "messages": [{"role": "user", "content": content}]}
    more = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "return_token_ids": True}
    return here.post(PATH, body | more)


def page(folder: Path, image: Any) -> torch.Tensor:
    """The image as the processor prepares it, [3, height, width]."""
    images = read_model(folder, "m").images
    assert images is not None
    made = images.processor(image)
    cells = torch.from_numpy(made.pixels).view(PAGE[0] // 6, PAGE[1] // 6, 3, 6, 6)
    return cells.permute(2, 0, 3, 1, 4).reshape(3, *PAGE)


@pytest.mark.row("V62", "F15.04")
def test_pages_in_any_chunks(tmp_path: Path) -> None:
    """The tokens of a re-computation in steps of three tokens and on two ranks, and again from the
    cache, which takes no page for another; a second page is refused."""
    tiny_models.save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens([START])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    start = tokenizer.token_to_id(START)
    model = Parse(tmp_path, start)
    for more in ({"max_num_batched_tokens": 3}, {"tensor_parallel_size": 2}):
        with whole(tmp_path, worker={"block_size": 4, "max_num_seqs": 3} | more) as here:
            for image in (WIDE, TALL, WIDE):
                answer = ask(here, image)
                assert answer.status_code == 200, answer.text
                prompt = answer.json()["prompt_token_ids"]
                assert prompt[0] == start and prompt.count(start) == 1
                seen = model.page(page(tmp_path, image))
                found = answer.json()["choices"][0]["token_ids"]
                assert found == model.continued(prompt, seen, COUNT)
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            assert here.worker.encoder is not None and here.worker.encoder.num_encoded == 2
            assert ask(here, WIDE, TALL).json()["error"]["code"] == "too_many_images"
