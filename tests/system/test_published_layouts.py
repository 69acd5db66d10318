"""Checkpoints through every service: in the layout of their makers, where transformers has no class
for them and an independent re-computation says what they answer, and some that it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from baton.checkpoint.part_folders import text_folder, vision_folder
from baton_mm_preprocess.model_info import read_model
from baton_mm_preprocess.processors.any_processor import among
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.load_tower import load_tower
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.whole_system import Whole, whole
from tests.oracles.towers.sights import makers
from tests.support import tiny_models, tiny_molmo2, tiny_phi4, tiny_towers
from tests.support.tiny_dual_encoders import data_url, picture
from tests.support.worker.lora_folders import deltas, write_adapter

COUNT = 8
PAGE = Path(__file__).parents[2] / "docs" / "api" / "multimodal.md"
PICTURES = [picture(60, 40, 1), picture(30, 33, 2)]
_DRAFTS = '{"num_speculative_tokens": 4, "prompt_lookup_min": 1}'
_SQUARE = {"height": 30, "width": 30}
_OFFERED = [[30, 60], [60, 30], [60, 60], [90, 30], [30, 90]]
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "TarsierForConditionalGeneration": (
        ("<image>",),
        {"image_processor_type": "SiglipImageProcessor", "size": _SQUARE},
    ),
    "BeeForConditionalGeneration": (
        ("<image>",),
        {"size": _SQUARE, "image_grid_pinpoints": _OFFERED},
    ),
    "H2OVLChatModel": (("<IMG_CONTEXT>", "<img>", "</img>"), {}),
    "DotsOCRForCausalLM": (
        ("<|imgpad|>",),
        {"patch_size": 4, "temporal_patch_size": 1, "min_pixels": 64, "max_pixels": 1024},
    ),
    "NemotronH_Nano_VL_V2": (("<image>", "<img>", "</img>"), {"max_num_tiles": 3}),
    "Ovis": (("<|image_pad|>",), {"size": {"shortest_edge": 24}}),
    "IsaacForConditionalGeneration": (("<|image_pad|>",), {"max_num_patches": 24}),
    "QwenVLForConditionalGeneration": (("<imgpad>", "<img>", "</img>"), {}),
    "Ovis2_5": (("<|image_pad|>",), {"min_pixels": 100, "max_pixels": 2000}),
    "LlavaLlamaModel": (("<image>",), {"size": {"height": 20, "width": 20}}),
    "HCXVisionForCausalLM": (
        ("<|dummy3|>",),
        {"size": {"shortest_edge": 30}, "crop_size": _SQUARE, "anyres": True, "unpad": True}
        | {"possible_resolutions": _OFFERED},
    ),
    "KananaVForConditionalGeneration": (
        ("<image>",),
        {"patch_size": 5, "min_pixels": 200, "max_pixels": 1500},
    ),
    "DeepseekOCRForCausalLM": (
        ("<image>",),
        {"base_size": 64, "image_size": 40, "patch_size": 4, "max_crops": 3},
    ),
    "DeepseekVLV2ForCausalLM": (("<image>",), {"patch_size": 4, "downsample_ratio": 2}),
    "MiniCPMV": (
        ("<unk>", "<image>", "</image>"),
        {"scale_resolution": 28, "patch_size": 7, "use_image_id": True},
    ),
    "AriaForConditionalGeneration": (
        ("<|img|>",),
        {"max_image_size": 30, "min_image_size": 10},
    ),
    "ChameleonForConditionalGeneration": (
        ("<image>", "<racm3:break>", "<eoss>"),
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    ),
    "Blip2ForConditionalGeneration": (("<image>",), {"size": _SQUARE}),
    "VipLlavaForConditionalGeneration": (
        ("<image>",),
        {"size": {"shortest_edge": 30}, "crop_size": _SQUARE},
    ),
    "DeepseekVLForConditionalGeneration": (("<image_placeholder>",), {"size": _SQUARE}),
    "JanusForConditionalGeneration": (
        ("<image_placeholder>", "<begin_of_image>", "<end_of_image>"),
        {"size": _SQUARE},
    ),
    "QianfanOCRForConditionalGeneration": (
        ("<IMG_CONTEXT>", "<img>", "</img>"),
        {"size": {"height": 24, "width": 24}, "max_patches": 3},
    ),
    "VideoLlama3ForConditionalGeneration": (
        ("<image>",),
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 1024},
    ),
    "Exaone4_5_ForConditionalGeneration": (
        ("<|image_pad|>",),
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 1024},
    ),
    "HyperCLOVAXVisionV2ForConditionalGeneration": (
        ("<|IMAGE_PAD|>",),
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 1024},
    ),
    "GotOcr2ForConditionalGeneration": (
        ("<imgpad>", "<img>", "</img>"),
        {"size": {"height": 48, "width": 48}},
    ),
    "StepVLForConditionalGeneration": (
        ("<im_patch>", "<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>"),
        {},
    ),
    "OpenPanguVLForConditionalGeneration": (
        ("[unused19]",),
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 1024},
    ),
    "KimiK25ForConditionalGeneration": (
        ("<|media_pad|>",),
        {
            "media_proc_cfg": {"in_patch_limit": 24, "patch_limit_on_one_side": 16, "patch_size": 6}
            | {"merge_kernel_size": 2, "temporal_merge_kernel_size": 4, "sample_fps": 2.0}
            | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        },
    ),
}
"""Tokens that the vocabulary has, the image token first, and the settings of the processor."""


def template(page: str) -> str:
    """The chat template on a page of the documentation."""
    return page.split("```jinja\n")[1].split("```")[0].rstrip()


def save(folder: Path, tokens: tuple[str, ...], settings: dict[str, Any]) -> int:
    """Put a tokenizer and a processor beside a checkpoint; returns the image token."""
    texts = text_folder(folder)
    for name in ("added_tokens.json", "tokenizer_config.json"):
        (texts / name).unlink(missing_ok=True)
    tiny_models.save_tokenizer(texts)
    tokenizer = Tokenizer.from_file(str(texts / "tokenizer.json"))
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.save(str(texts / "tokenizer.json"))
    (vision_folder(folder) / "preprocessor_config.json").write_text(json.dumps(settings))
    config, token = (
        json.loads((folder / "config.json").read_text()),
        tokenizer.token_to_id(tokens[0]),
    )
    names = ("image_token_id", "image_token_index", "img_context_token_id", "image_patch_id")
    named: dict[str, Any] = {name: token for name in names if name in config}
    if "visual" in config:  # Which names the token before an image; this one is the second next.
        named["visual"] = config["visual"] | {"image_start_id": token - 2}
    if folder.name.startswith("Kanana"):  # Which names the token before it.
        named["text_config"] = config["text_config"] | {"eos_token_id": token - 1}
    if "vocabulary_map" in config:
        named["vocabulary_map"] = config["vocabulary_map"] | {"<image>": token}
    (folder / "config.json").write_text(json.dumps(config | named))
    return int(token)


def ask(here: Whole, count: int) -> tuple[list[int], list[int]]:
    """Prompt and answer of a conversation with so many pictures."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "one"}]
    for image in PICTURES[:count]:
        parts.append({"type": "image_url", "image_url": {"url": data_url(image)}})
    body = {
        "model": here.model,
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "two"}]}],
        **{"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "return_token_ids": True},
    }
    answer = here.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["prompt_token_ids"], found["choices"][0]["token_ids"]


def processed(folder: Path, count: int) -> list[ProcessedImage]:
    """The pictures as the processor prepares them."""
    images = read_model(folder, "m").images
    assert images is not None
    return [among(images.processor, count)(image) for image in PICTURES[:count]]


def embeddings(folder: Path, count: int) -> Tensor:
    """What the tower makes of the pictures; other tests compare it with a re-computation."""
    loaded = load_model(folder, BuildContext(torch.device("cpu"), torch.float32))
    assert isinstance(loaded.model, Model) and loaded.model.vision
    made = processed(folder, count)
    pixels, grids = [torch.from_numpy(one.pixels) for one in made], [one.grid for one in made]
    return torch.cat(loaded.model.vision.encode_media(pixels, grids))


@torch.no_grad()
def continued(text: Any, prompt: list[int], image_token: int, seen: Tensor) -> list[int]:
    """What the language model of transformers writes greedily."""
    tokens = torch.tensor(prompt)
    inputs = text.get_input_embeddings()(tokens)
    if not seen.is_floating_point():
        seen = text.get_input_embeddings()(seen[:, 0])
    inputs[tokens == image_token] = seen
    found = list[int]()
    for _ in range(COUNT):
        found.append(int(text(inputs_embeds=inputs[None]).logits[0, -1].argmax()))
        last = text.get_input_embeddings()(torch.tensor(found[-1:]))
        inputs = torch.cat((inputs, last))
    return found


def text_model(name: str, folder: Path) -> Any:
    """Write a checkpoint; returns its language model."""
    if name not in tiny_towers.ARCHITECTURES:
        return makers()[name](folder).text
    model = tiny_towers.tiny_tower(tiny_towers.ARCHITECTURES[name], folder)
    return model.language_model if name.startswith("Blip2") else model


@pytest.mark.row("F01.01", "F02.10", "V29", "V30", "V31", "V36", "V37", "V39", "V43", "V45", "V49")
@pytest.mark.row("V07", "V20", "V23", "V24", "V28", "V32", "V35", "V53", "V55", "V57", "V60", "V63")
def test_answers_to_pictures(tmp_path: Path) -> None:
    """Steps of 12 tokens cut every image. Templates know no images here, and say where one is."""
    for name, (tokens, settings) in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        text = text_model(name, folder)
        image_token = save(folder, tokens, settings)
        if name.startswith("Blip2"):
            (folder / "chat_template.jinja").write_text(template(PAGE.read_text()))
        with whole(folder, worker={"block_size": 4, "max_num_batched_tokens": 12}) as here:
            for count in (1, 2):
                prompt, answer = ask(here, count)
                seen = embeddings(folder, count)
                assert prompt.count(image_token) == len(seen), name
                if name.startswith(("Isaac", "OpenPangu")):  # On three axes, in 2 x 2 windows.
                    sizes = [image.grid[1:] for image in processed(folder, count)]
                    grids = [(rows // 2, columns // 2) for rows, columns in sizes]
                    text.model.rotary_emb.place(prompt, image_token, grids)
                assert answer == continued(text, prompt, image_token, seen), name
                assert prompt[0] == image_token or not name.startswith("Blip2")


@pytest.mark.row("V58", "F02.07", "F23.02")
def test_answers_to_pictures_in_tiles_with_padding(tmp_path: Path) -> None:
    """Phi-4-multimodal as Microsoft saves it, in steps of 12 tokens: the tokens of transformers,
    and again from the cache."""
    model = tiny_phi4.save(tmp_path)
    token = save(tmp_path, ("<|endoftext10|>",), tiny_phi4.PROCESSOR)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["image_token_id"] = token
    (tmp_path / "config.json").write_text(json.dumps(config))
    tiny_phi4.as_published(tmp_path)
    with whole(tmp_path, worker={"block_size": 4, "max_num_batched_tokens": 12}) as here:
        for count in (1, 2):
            prompt, answer = ask(here, count)
            seen = embeddings(tmp_path, count)
            assert prompt.count(token) == len(seen)
            assert answer == continued(model, prompt, token, seen)
            assert ask(here, count)[1] == answer


@pytest.mark.row("V59", "F02.08", "F23.03")
def test_answers_to_a_picture_whose_tokens_see_one_another(tmp_path: Path) -> None:
    """Molmo 2: the tokens of transformers, and again from the cache; a second picture is refused
    with the reason."""
    marks = ("<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>", "<|image|>")
    model = tiny_molmo2.save(tmp_path)
    token = save(tmp_path, marks, tiny_molmo2.SETTINGS)
    model.config.image_patch_id = model.model.config.image_patch_id = token
    with whole(tmp_path, worker={"block_size": 4, "max_num_batched_tokens": 92}) as here:
        prompt, answer = ask(here, 1)
        images = read_model(tmp_path, "m").images
        assert images is not None
        made = images.processor(PICTURES[0])
        placed = images.tokens(made.grid, made.num_tokens)
        first = next(at for at in range(len(prompt)) if prompt[at : at + len(placed)] == placed)
        kinds = torch.zeros(1, len(prompt) + COUNT, dtype=torch.int64)
        kinds[:, first : first + len(placed)] = 1
        given, tokens = tiny_molmo2.inputs([(made.pixels, made.grid)]), list(prompt)
        for _ in range(COUNT):
            seen = {"mm_token_type_ids": kinds[:, : len(tokens)], **given}
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens]), **seen).logits[0, -1].argmax()))
        assert answer == tokens[len(prompt) :]
        assert ask(here, 1)[1] == answer
        with pytest.raises(AssertionError, match="takes 1 image in a request"):
            ask(here, 2)


def test_answers_to_pictures_of_gemma_4(tmp_path: Path) -> None:
    """The tokens of transformers, and again from the cache: in steps of 12 tokens, which cut every
    image, and in steps of 92 where the tokens of an image see one another. Beside drafts and of two
    ranks; an encode worker makes the same embeddings, an adapter answers as if it was merged."""
    for name, most in (("gemma4", 12), ("gemma4-both-ways", 92)):
        model, processor = _gemma4(name, folder := tmp_path / name)
        settings = {"block_size": 4, "max_num_batched_tokens": most}
        with whole(folder, worker=settings) as here:
            for count in (1, 2):
                prompt, answer = ask(here, count)
                assert answer == _seen_and_written(model, processor, prompt, count), (name, count)
                assert ask(here, count)[1] == answer
        for more in ({"speculative_config": _DRAFTS}, {"tensor_parallel_size": 2}):
            with whole(folder, worker=settings | more) as here:
                assert ask(here, 2) == (prompt, answer), (name, more)
        context = BuildContext(torch.device("cpu"), torch.float32)
        alone, made = load_tower(folder, context).tower, processed(folder, 2)
        found = alone.encode_media(
            [torch.from_numpy(one.pixels) for one in made], [one.grid for one in made]
        )
        assert torch.equal(torch.cat(found), embeddings(folder, 2)), name
        _adapted(model, processor, folder, settings, answer)


def _gemma4(name: str, folder: Path) -> tuple[Any, Any]:
    """Write a checkpoint; returns the model of transformers, and its image processor."""
    model = tiny_towers.tiny_tower(name, folder)
    fields = {"max_soft_tokens": 70, "patch_size": 4}
    marks = ("<|image|>", "<|image>", "<image|>")
    token = save(folder, marks, {"image_processor_type": "Gemma4ImageProcessor", **fields})
    config = json.loads((folder / "config.json").read_text())
    config |= {"boi_token_id": token + 1, "eoi_token_id": token + 2}
    (folder / "config.json").write_text(json.dumps(config))
    model.config.image_token_id = token
    return model, transformers.Gemma4ImageProcessorPil(**fields)


def _seen_and_written(model: Any, processor: Any, prompt: list[int], count: int) -> list[int]:
    """What Gemma 4 of transformers writes greedily."""
    token, tokens = model.config.image_token_id, list(prompt)
    seen = processor(PICTURES[:count], return_tensors="pt")
    assert prompt.count(token) == sum(seen.pop("num_soft_tokens_per_image")) >= 60
    assert prompt.count(token + 1) == prompt.count(token + 2) == count
    for _ in range(COUNT):
        kinds = (torch.tensor([tokens]) == token).int()
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), mm_token_type_ids=kinds, **seen)
        tokens.append(int(logits.logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def _adapted(
    model: Any, processor: Any, folder: Path, settings: dict[str, Any], base: list[int]
) -> None:
    """The base and an adapter of its text layers, of which transformers gets a sum."""
    modules = {
        name: (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if "language_model.layers" in name and name.endswith(("q_proj", "o_proj", "down_proj"))
    }
    adapter = write_adapter(folder.with_name(f"{folder.name}-lora"), modules, scale=0.2)
    lora = {"enable_lora": True, "lora_modules": f"one={adapter}"}
    with whole(folder, worker=settings | lora) as here:
        assert ask(here, 2)[1] == base
        here.model = "one"
        prompt, answer = ask(here, 2)
    for name, delta in deltas(adapter).items():
        model.get_submodule(name).weight.data += delta
    assert answer == _seen_and_written(model, processor, prompt, 2) != base


@pytest.mark.row("V12", "F02.10")
def test_answers_to_a_picture_whose_end_has_an_embedding(tmp_path: Path) -> None:
    """Gemma 3n, in steps of 3 tokens that cut every image: the tokens of transformers, again
    from the cache, beside drafts and of two ranks. Sounds are refused."""
    text = makers()["Gemma3nForConditionalGeneration"](tmp_path).text
    marks = ("<image_soft_token>", "<end_of_image>", "<start_of_image>")
    steps = {"image_processor_type": "SiglipImageProcessor", "do_normalize": False}
    token = save(tmp_path, marks, steps | {"size": {"height": 48, "width": 48}})
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"eoi_token_id": token + 1}
    config["vision_config"]["vocab_offset"] = token
    (tmp_path / "config.json").write_text(json.dumps(config))
    with whole(tmp_path, worker={"block_size": 4, "max_num_batched_tokens": 3}) as here:
        prompt, answer = ask(here, 2)
        seen, ids = embeddings(tmp_path, 2), torch.tensor(prompt)
        places = (ids == token) | (ids == token + 1)
        assert int(places.sum()) == len(seen) == 10 and prompt.count(token) == 8
        inputs = text.get_input_embeddings()(ids)
        inputs[places] = seen
        assert answer == _written(text, inputs)
        assert ask(here, 2)[1] == answer
        sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
        body = {"model": here.model, "messages": [{"role": "user", "content": [sound]}]}
        assert here.post("/v1/chat/completions", body).status_code == 400
    for more in ({"speculative_config": _DRAFTS}, {"tensor_parallel_size": 2}):
        with whole(tmp_path, worker={"block_size": 4, **more}) as here:
            assert ask(here, 2)[1] == answer, more


@torch.no_grad()
def _written(text: Any, inputs: Tensor) -> list[int]:
    found = list[int]()
    for _ in range(COUNT):
        found.append(int(text(inputs_embeds=inputs[None]).logits[0, -1].argmax()))
        inputs = torch.cat((inputs, text.get_input_embeddings()(torch.tensor(found[-1:]))))
    return found
