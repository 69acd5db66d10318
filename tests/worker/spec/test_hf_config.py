"""Reading config.json without transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_worker.spec.hf_config import read_config, read_eos_token_ids


def write(folder: Path, config: str, generation: str | None = None) -> Path:
    (folder / "config.json").write_text(config)
    if generation is not None:
        (folder / "generation_config.json").write_text(generation)
    return folder


def test_objects_become_attributes(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, '{"a": 1, "text": {"b": [2, null]}}'))
    assert config.a == 1 and config.text.b == [2, None]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ('{"eos_token_id": 2}', None, (2,)),
        ('{"eos_token_id": 2}', '{"eos_token_id": [7, 8]}', (7, 8)),
        ('{"eos_token_id": [2, 3]}', "{}", (2, 3)),
        ('{"eos_token_id": null}', None, ()),
        ('{"eos_token_id": 5}', '{"eos_token_id": 0}', (0,)),
    ],
)
def test_the_generation_config_says_what_ends_a_turn(
    tmp_path: Path, config: str, generation: str | None, expected: tuple[int, ...]
) -> None:
    folder = write(tmp_path, config, generation)
    assert read_eos_token_ids(folder, read_config(folder)) == expected


def test_a_missing_file_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json .* \.gguf"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_file_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match="JSON"):
        read_config(write(tmp_path, text))


def test_a_file_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").rmdir()
    (tmp_path / "params.json").write_text('{"qk_nope_head_dim": 1, "moe": 3}')
    with pytest.raises(ModelError, match=r"params\.json .* that it cannot have"):
        read_config(tmp_path)


def test_architectures_are_a_list_of_names(tmp_path: Path) -> None:
    for named in ('"LlamaForCausalLM"', "[3]"):
        with pytest.raises(ModelError, match="must be a list of names"):
            read_config(write(tmp_path, f'{{"architectures": {named}}}'))


def test_what_is_no_token_id_ends_no_turn(tmp_path: Path) -> None:
    for value in ('"2"', "[[2]]", "1.0", '{"a": 2}'):
        folder = write(tmp_path, f'{{"eos_token_id": {value}}}')
        with pytest.raises(ModelError, match="eos_token_id must be a token id"):
            read_eos_token_ids(folder, read_config(folder))
