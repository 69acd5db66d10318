"""Vocabularies from disk: a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from baton.errors import ModelError, SettingsError
from baton_tokenizer.gguf import read_gguf
from baton_tokenizer.vocab import Source, Vocab, build

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_MEDIA_KEYS = tuple(
    f"{kind}_{suffix}"
    for kind in ("image", "video", "audio", "vision_start", "vision_end", "boi", "eoi")
    for suffix in ("token_id", "token_index")
)


def load(path: Path, chat_template: Path | None = None) -> Vocab:
    """Load the vocabulary of a model.

    `path` is a folder with tokenizer.json, or a .gguf file, or a folder with one. A file
    `chat_template` replaces the templates of the checkpoint. Raises `ModelError` for a
    vocabulary that is missing or of an unknown kind, `SettingsError` for an unreadable template.
    """
    source = _source(path)
    if chat_template is not None:
        source = Source(
            source.spec,
            {"default": _template_file(chat_template)},
            source.named,
            source.eos_ids,
            source.media_ids,
        )
    return build(source)


def _source(path: Path) -> Source:
    if path.is_file() and path.suffix == ".gguf":
        return read_gguf(path)
    if (path / "tokenizer.json").is_file():
        return read_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return read_gguf(files[0])
    if (path / "tokenizer.model").is_file():
        raise ModelError(
            f"{path.name} has only tokenizer.model. Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes tokenizer.json."
        )
    raise ModelError(f"{path} holds no tokenizer: expected tokenizer.json or one .gguf file.")


def read_folder(path: Path) -> Source:
    """The tokenizer of a Hugging Face folder."""
    spec = _json(path / "tokenizer.json")
    settings = _json(path / "special_tokens_map.json") | _json(path / "tokenizer_config.json")
    spec.setdefault("added_tokens", [])
    named = {role: text for role in _ROLES if (text := _content(settings.get(role)))}
    config = _json(path / "config.json")
    return Source(
        spec=spec,
        templates=dict(_templates(path, settings)),
        named=named,
        eos_ids=tuple(dict.fromkeys(_eos_ids(path, spec, named, config))),
        media_ids=tuple(v for key in _MEDIA_KEYS if isinstance(v := config.get(key), int)),
    )


def _json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.name} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} must hold a JSON object.")
    return content


def _content(token: object) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _templates(path: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Chat templates by name; files win over tokenizer_config.json, as in transformers."""
    given = settings.get("chat_template")
    if isinstance(given, str):
        yield "default", given
    elif isinstance(given, list):
        yield from ((entry["name"], entry["template"]) for entry in given)
    file = path / "chat_template.jinja"
    if file.is_file():
        yield "default", _template_file(file)
    for extra in sorted((path / "additional_chat_templates").glob("*.jinja")):
        yield extra.stem, _template_file(extra)


def _template_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"The chat template {path} cannot be read: {error}.") from error


def _eos_ids(
    path: Path, spec: Mapping[str, Any], named: Mapping[str, str], config: Mapping[str, Any]
) -> Iterator[int]:
    """Every id that ends a text: of generation_config.json, config.json and the tokenizer."""
    for source in (_json(path / "generation_config.json"), config):
        ids = source.get("eos_token_id")
        yield from ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else []
    eos = named.get("eos_token")
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    vocab = spec["model"].get("vocab")
    known = added if not isinstance(vocab, dict) else vocab | added
    if eos in known:
        yield known[eos]
