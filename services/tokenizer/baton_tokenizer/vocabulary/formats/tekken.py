"""tekken.json: vocabularies of Mistral models since Nemo."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json
from baton.errors import ModelError
from baton_tokenizer.vocabulary.bpe_ranks import add_tokens, ranked_spec
from baton_tokenizer.vocabulary.formats.checkpoint_folder import (
    Folder,
    entry,
    read_template,
)
from baton_tokenizer.vocabulary.post_processor import frame
from baton_tokenizer.vocabulary.vocabulary import Source

_FILE = "tekken.json"
_UNLISTED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
"""Special tokens, by id, of files that list none."""
_VERSIONS = {"v3": 3, "v7": 7, "v11": 11, "v13": 13}
"""Versions whose conversations templates/tekken.jinja renders."""
_NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class Tekken:
    """A vocabulary in the format of https://github.com/mistralai/mistral-common."""

    @staticmethod
    def fits(path: Path) -> bool:
        """Whether the folder has the file."""
        return (path / _FILE).is_file()

    @staticmethod
    def read(path: Path) -> Source:
        """Read the tokenizer of a folder. Raises `ModelError` if the file is incomplete."""
        content = read_json(path / _FILE)
        try:
            spec = _spec(content)
            version = content["config"]["version"]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{_FILE} is not a tekken vocabulary: {error!r}.") from error
        source = Folder(path).source(spec, _NAMED)
        if source.templates or version not in _VERSIONS:
            return source
        return replace(source, templates={"default": _template(_VERSIONS[version])})


def _template(version: int) -> str:
    """Chat template of a version, for a checkpoint without one."""
    file = Path(__file__).parent / "templates" / "tekken.jinja"
    return f"{{%- set version = {version} -%}}\n{read_template(file)}"


def _spec(content: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks start after the special tokens; only those within the model's vocabulary size are
    used."""
    config = content["config"]
    num_special, size = config["default_num_special_tokens"], config["default_vocab_size"]
    ranks = {
        base64.b64decode(token["token_bytes"]): token["rank"]
        for token in content["vocab"][: size - num_special]
    }
    spec = ranked_spec(ranks, [config["pattern"]], offset=num_special)
    spec = add_tokens(spec, list(_specials(content, num_special)))
    bos = spec["model"]["vocab"][_NAMED["bos_token"]]
    return spec | {"post_processor": frame([(_NAMED["bos_token"], bos)], [])}


def _specials(content: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    listed = content.get("special_tokens")
    if listed is None:
        listed = [{"rank": i, "token_str": name} for i, name in enumerate(_UNLISTED)]
    names = {token["rank"]: token["token_str"] for token in listed}
    for number in range(count):
        yield entry(number, names.get(number, f"<SPECIAL_{number}>"), special=True)
