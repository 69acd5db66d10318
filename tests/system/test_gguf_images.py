"""Images for GGUF files, through every service: the answers of the Hugging Face checkpoint."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_gemma3, tiny_grids, tiny_llava, tiny_towers
from tests.support.gguf_projectors import save_pair, written_tokens
from tests.support.tiny_dual_encoders import data_url, picture

SETTINGS = {"block_size": 4, "max_num_batched_tokens": 300, "max_num_seqs": 3}
PATH = "/v1/chat/completions"
RED, BLUE = picture(40, 30, 1), picture(30, 50, 2)


def talk(here: Whole, **fields: Any) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in (RED, BLUE)]
    parts = [
        {"type": "text", "text": "one "},
        images[0],
        {"type": "text", "text": " or "},
        images[1],
    ]
    body = {"model": here.model, "messages": [{"role": "user", "content": parts}]}
    return (
        body | {"temperature": 0, "max_tokens": 10, "logprobs": True, "ignore_eos": True} | fields
    )


def answered(path: Path) -> tuple[str, list[float]]:
    """Twice: the second time without the encoder."""
    with whole(path, worker=SETTINGS) as here:
        answers = [here.post(PATH, talk(here)) for _ in range(2)]
        assert all(answer.status_code == 200 for answer in answers), answers[0].text
        [one], [two] = (answer.json()["choices"] for answer in answers)
        assert one["message"] == two["message"]
        return one["message"]["content"], [x["logprob"] for x in one["logprobs"]["content"]]


def qwen(name: str, folder: Path) -> dict[str, Any]:
    tiny_grids.save(folder, name)
    return written_tokens(folder, {"<image>": "<|image_pad|>"})


def gemma(folder: Path) -> dict[str, Any]:
    # As files have it: the scale of all sizes but one, and every sixth layer without a window.
    tiny_gemma3.save(folder, query_pre_attn_scalar=12, layer_types=["sliding_attention"] * 2)
    (folder / "preprocessor_config.json").write_text(json.dumps(GEMMA))
    return written_tokens(folder, {})


def gemma4(folder: Path) -> dict[str, Any]:
    fields = tiny_towers.TOWERS["gemma4-both-ways"][1]
    sizes = {  # For images of 280 tokens, as files say nothing of it.
        "text_config": fields["text_config"] | {"max_position_embeddings": 1024},
        "vision_config": fields["vision_config"] | {"position_embedding_size": 64},
    }
    tiny_towers.tiny_tower("gemma4-both-ways", folder, **sizes)
    token = tiny_llava.save_tokenizer(
        folder, tiny_llava.CHAT_TEMPLATE.replace("<image>", MARKS[0]), MARKS
    )
    config = json.loads((folder / "config.json").read_text())
    named = ("image_token_id", "boi_token_id", "eoi_token_id")
    config |= {name: token + number for number, name in enumerate(named)}
    (folder / "config.json").write_text(json.dumps(config))
    processor = {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | UNCHANGED))
    return written_tokens(folder, {})


def lfm2(folder: Path) -> dict[str, Any]:
    fields = tiny_towers.TOWERS["lfm2-vl"][1]
    sizes = {  # For images of 64 tokens, with the limits of published checkpoints.
        "text_config": fields["text_config"]
        | {"max_position_embeddings": 1024, "block_auto_adjust_ff_dim": False},
        "vision_config": fields["vision_config"] | {"patch_size": 16},
        **{"tile_size": 512, "encoder_patch_size": 16, "max_tiles": 10},
        **{"min_image_tokens": 64, "max_image_tokens": 256},
    }
    tiny_towers.tiny_tower("lfm2-vl", folder, **sizes)
    marks = ("<image>", "<|image_start|>", "<|image_end|>")
    token = tiny_llava.save_tokenizer(folder, tiny_llava.CHAT_TEMPLATE, marks)
    config = json.loads((folder / "config.json").read_text())
    config |= {"image_token_id": token, "image_token_index": token}
    (folder / "config.json").write_text(json.dumps(config))
    processor = {"image_processor_type": "Lfm2VlImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | HALF))
    return written_tokens(folder, {})


def internvl(folder: Path) -> dict[str, Any]:
    tiny_towers.tiny_tower("internvl", folder)
    marks = ("<IMG_CONTEXT>", "<img>", "</img>")
    template = tiny_llava.CHAT_TEMPLATE.replace("<image>", marks[0])
    token = tiny_llava.save_tokenizer(folder, template, marks)
    config = json.loads((folder / "config.json").read_text())
    config |= {"image_token_id": token, "image_token_index": token, "image_seq_length": 4}
    (folder / "config.json").write_text(json.dumps(config))
    tiles = {"size": {"height": 24, "width": 24}, "max_patches": 3}
    processor = {"image_processor_type": "GotOcr2ImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | tiles))
    return written_tokens(folder, {})


def llava(folder: Path) -> dict[str, Any]:
    """A language model that was made for texts: its template and vocabulary have no image."""
    tiny_llava.save(folder, template=TEXTS)
    tokens = written_tokens(folder, {"<image>": "<unk>"})
    types = tokens["tokenizer.ggml.token_type"]
    types[tokens["tokenizer.ggml.tokens"].index("<unk>")] = 2
    return tokens


def llava_next(folder: Path) -> dict[str, Any]:
    length = {"max_position_embeddings": 1024}
    text = tiny_towers.TOWERS["llava-next"][1]["text_config"] | length
    tiny_towers.tiny_tower("llava-next", folder, text_config=text)
    token = tiny_llava.save_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"image_token_id": token, "image_token_index": token}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"size": {"shortest_edge": 30}, "crop_size": {"height": 30, "width": 30}}
    processor = {"image_processor_type": "LlavaNextImageProcessor"} | sizes
    offered = {"image_grid_pinpoints": config["image_grid_pinpoints"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | offered))
    return written_tokens(folder, {})


TEXTS = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ("<|image|>", "<|image>", "<image|>")
UNCHANGED = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
GEMMA = {
    "image_processor_type": "Gemma3ImageProcessor",
    "size": {"height": 30, "width": 30},
    **HALF,
}
FAMILIES = {
    "qwen2.5-vl": partial(qwen, "qwen2.5-vl"),
    "qwen3.5": partial(qwen, "qwen3.5"),
    "gemma3": gemma,
    "gemma4-both-ways": gemma4,
    "internvl": internvl,
    "lfm2-vl": lfm2,
    "llava-clip": llava,
    "llava-next": llava_next,
}


@pytest.mark.row("F03.22", "F01.01", "V11")
def test_a_gguf_file_sees_with_the_encoder_beside_it(tmp_path: Path) -> None:
    for name, save in FAMILIES.items():
        folder = tmp_path / name
        tokens = save(folder)
        file = save_pair(folder, tmp_path / f"{name}-gguf", name, tokens)
        expected, found = answered(folder), answered(file)
        assert found[0] == expected[0], name
        assert found[1] == pytest.approx(expected[1], abs=1e-4), name
    other = tmp_path / "gemma3-gguf" / "mmproj-model-f16.gguf"
    shutil.copy(other, tmp_path / "qwen2.5-vl-gguf" / "mmproj-model-f16.gguf")
    with whole(tmp_path / "qwen2.5-vl-gguf" / "model.gguf", worker=SETTINGS) as here:
        assert (
            here.post(PATH, talk(here, messages=[{"role": "user", "content": "a"}])).status_code
            == 200
        )
        answer = here.post(PATH, talk(here))
        assert answer.status_code == 400
        assert "is the encoder of another model" in error_of(answer)["message"]
