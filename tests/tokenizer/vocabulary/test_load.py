"""Vocabularies from folders and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from baton.errors import ModelError, SettingsError
from baton_tokenizer.vocabulary.formats import FORMATS
from baton_tokenizer.vocabulary.load import load, read
from tests.fakes.vocabularies import byte_spec


def folder(path: Path, **files: dict[str, Any]) -> Path:
    """A Hugging Face folder: `name` is written to name.json."""
    for name, content in {"tokenizer": byte_spec(), **files}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_special_tokens_are_strings_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<|im_start|>", "lstrip": False}, "eos_token": "</s>"}
    extra = {"pad_token": "</s>", "additional_special_tokens": ["<x>"]}
    source = read(folder(tmp_path, tokenizer_config=config, special_tokens_map=extra))
    assert source.named == {
        "bos_token": "<|im_start|>",
        "eos_token": "</s>",
        "pad_token": "</s>",
    }


def test_every_end_is_found_once(tmp_path: Path) -> None:
    source = read(
        folder(
            tmp_path,
            tokenizer_config={"eos_token": "</s>"},
            generation_config={"eos_token_id": [7, 8]},
            config={"eos_token_id": 8, "image_token_id": 42},
        )
    )
    end = next(t["id"] for t in byte_spec()["added_tokens"] if t["content"] == "</s>")
    assert source.eos_ids == (7, 8, end)
    assert source.media_ids == (42,) and source.placeholder_ids == {"image": 42}


def test_an_image_token_that_the_config_does_not_name(tmp_path: Path) -> None:
    listed = {"added_tokens_decoder": {"9": {"content": "<IMG_CONTEXT>", "special": True}}}
    made = folder(tmp_path, tokenizer_config=listed, config={"vision_config": {}})
    assert read(made).placeholder_ids == {"image": 9}
    assert read(folder(tmp_path, tokenizer_config=listed, config={})).placeholder_ids == {}
    odd = byte_spec() | {"decoder": {"decoders": []}}
    for files in ({"config": {"architectures": 3}}, {"tokenizer": odd}):
        with pytest.raises(ModelError, match=r"tokenizer files in .* that it cannot have"):
            load(folder(tmp_path, **files))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("plain", {"default": "plain"}),
        (
            [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
            {"default": "a", "tool_use": "b"},
        ),
        (None, {}),
    ],
)
def test_templates_in_the_config(given: object, expected: dict[str, str], tmp_path: Path) -> None:
    source = read(folder(tmp_path, tokenizer_config={"chat_template": given}))
    assert source.templates == expected


def test_template_files_win(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": "config"})
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert read(tmp_path).templates == {"default": "file", "tool_use": "tools"}
    mine = tmp_path / "mine.jinja"
    mine.write_text("mine")
    assert load(tmp_path, mine).templates == {"default": "mine"}


def test_a_missing_template_file_is_a_bad_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(folder(tmp_path), tmp_path / "none.jinja")


@pytest.mark.parametrize("name", FORMATS.names())
def test_every_format_knows_its_own_files(name: str, tmp_path: Path) -> None:
    assert not FORMATS.load(name).fits(tmp_path)
    files = {"gguf": "x.gguf", "tekken": "tekken.json", "tiktoken": "qwen.tiktoken"}
    file = tmp_path / files.get(name, name if "." in name else "tokenizer.model")
    file.write_text("QQ== 0\n" if name == "tiktoken" else "{}")
    fitting = [other for other in FORMATS.names() if FORMATS.load(other).fits(tmp_path)]
    assert fitting == [name]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_broken_json_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load(tmp_path)


def test_a_real_folder(stories: Path) -> None:
    vocab = load(stories)
    info = vocab.info("stories260k")
    assert (info.vocab_size, info.bos_id, info.eos_ids) == (512, 1, (2,))
    assert not info.has_chat_template
    reference = Tokenizer.from_file(str(stories / "tokenizer.json"))
    text = "Once upon a time, <s> 漢字 \n"
    assert vocab.tokenizer.encode(text).ids == reference.encode(text).ids


def test_a_real_gguf_file_in_a_folder(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(smollm2)
    info = load(tmp_path).info("smollm2")
    assert (info.vocab_size, info.bos_id, info.eos_ids) == (49152, 1, (2, 0, 4))
    assert info.has_chat_template and info.special_ids == tuple(range(17))
