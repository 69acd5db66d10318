"""Tokenizer settings of a checkpoint folder, except for the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from baton.checkpoint.added_tokens import added_tokens
from baton.checkpoint.json_file import read_json
from baton.checkpoint.part_folders import text_folder
from baton.errors import ModelError, SettingsError
from baton_tokenizer.vocabulary.pair_templates import PAIR_TEMPLATES
from baton_tokenizer.vocabulary.speech_tokens import speech_tokens
from baton_tokenizer.vocabulary.vocabulary import Source

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
_VISION_FIELDS = (
    *("vision_config", "vit_config", "visual_tokenizer_config", "img_processor"),
    "vision_tower_cfg",
)
"""Config fields of vision encoders."""
_AUDIO_FIELDS = ("audio_config", "audio_processor")
"""Config fields of audio encoders."""
_IMAGE_TEXTS = (
    *("<image>", "<IMG_CONTEXT>", "<|image_pad|>", "<|endoftext10|>"),
    *("<|IMAGE_PLACEHOLDER|>", "<|image|>"),
)
"""Image tokens of published models whose configs do not name them."""
_AUDIO_TEXTS = ("<|endoftext11|>",)
"""The same for audio tokens."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class Folder:
    """JSON and Jinja files of a checkpoint. Missing files are treated as empty."""

    def __init__(self, path: Path) -> None:
        self.path = text_folder(path)
        self._outer = path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """tokenizer_config.json over special_tokens_map.json."""
        return self._json("special_tokens_map.json") | self._json("tokenizer_config.json")

    @cached_property
    def generation(self) -> dict[str, Any]:
        """generation_config.json."""
        return self._json("generation_config.json")

    @property
    def task_prompts(self) -> dict[str, str]:
        """Texts that an embedding model reads before its input, by task: those of
        config_sentence_transformers.json."""
        prompts = self._json("config_sentence_transformers.json").get("prompts") or {}
        return {name: text for name, text in prompts.items() if isinstance(text, str)}

    @property
    def tokenizer_class(self) -> str:
        """Tokenizer class of transformers; empty if there is none."""
        named = self.settings.get("auto_map", {}).get("AutoTokenizer") or [None]
        class_name = self.settings.get("tokenizer_class") or named[0] or ""
        return str(class_name).rpartition(".")[2].removesuffix("Fast")

    @cached_property
    def _config(self) -> dict[str, Any]:
        """config.json; for a checkpoint in parts, the language model's config merged over it; for
        an omni model, the thinker's fields next to the rest."""
        config = self._json("config.json")
        merged = {**(config.get("thinker_config") or {}), **config}
        if self.path == self._outer:
            return merged
        return read_json(self._outer / "config.json") | merged

    @property
    def has_qwen_vl_vision(self) -> bool:
        """Whether config.json describes the encoder of Qwen-VL."""
        return "visual" in self._json("config.json")

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """Entries for `added_tokens` of a tokenizer.json, by id."""
        decoder = self.settings.get("added_tokens_decoder", {})
        entries = {int(i): entry(int(i), **t) for i, t in decoder.items()}
        for content, i in self._json("added_tokens.json").items():
            entries.setdefault(i, entry(i, content, special=content in self.named.values()))
        return [entries[i] for i in sorted(entries)]

    @cached_property
    def named(self) -> dict[str, str]:
        """Special tokens by role."""
        return {r: text for r in _ROLES if (text := _content(self.settings.get(r)))}

    def source(self, spec: dict[str, Any], named: Mapping[str, str] | None = None) -> Source:
        """A vocabulary with the folder's settings; `named` are the defaults of its format."""
        roles = {**(named or {}), **self.named}
        config = self._config
        added = {token["content"]: token["id"] for token in spec["added_tokens"]}
        places = self._placeholder_ids(config)
        named_ids = (v for key in _MEDIA_KEYS if isinstance(v := config.get(key), int))
        return Source(
            spec=spec,
            templates=dict(self._templates()),
            named=roles,
            eos_ids=tuple(dict.fromkeys(self._eos_ids(spec, roles, config))),
            media_ids=tuple(dict.fromkeys((*named_ids, *places.values()))),
            placeholder_ids=places,
            response_template=self._response_template(),
            generation=self.generation,
            task_prompts=self.task_prompts,
            pair_template=PAIR_TEMPLATES.get((config.get("architectures") or [""])[0]),
            speech=speech_tokens(config, self.generation, added, self.path),
        )

    def _placeholder_ids(self, config: Mapping[str, Any]) -> dict[str, int]:
        """Image and audio tokens from the config, or else from the added tokens of published
        models."""
        named, added = _placeholder_ids(config), added_tokens(self.path)
        for modality, fields, texts in (
            ("image", _VISION_FIELDS, _IMAGE_TEXTS),
            ("audio", _AUDIO_FIELDS, _AUDIO_TEXTS),
        ):
            ids = [added[text] for text in texts if text in added]
            if modality not in named and ids and not config.keys().isdisjoint(fields):
                named[modality] = ids[0]
        return named

    def _response_template(self) -> dict[str, Any]:
        """The checkpoint's declaration of its outputs; empty if there is none."""
        declared = self.settings.get("response_template")
        return declared if isinstance(declared, dict) else {}

    def _json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name) if (self.path / name).is_file() else {}

    def _templates(self) -> Iterator[tuple[str, str]]:
        """Chat templates by name; files override tokenizer_config.json, as in transformers."""
        template = self.settings.get("chat_template")
        if isinstance(template, str):
            yield "default", template
        elif isinstance(template, list):
            yield from map(_named_template, template)
        # Older versions of transformers saved a processor's template this way.
        processor = self._json("chat_template.json").get("chat_template")
        if isinstance(processor, str):
            yield "default", processor
        file = self.path / "chat_template.jinja"
        if file.is_file():
            yield "default", read_template(file)
        for extra in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            yield extra.stem, read_template(extra)

    def _eos_ids(
        self, spec: Mapping[str, Any], named: Mapping[str, str], config: Mapping[str, Any]
    ) -> Iterator[int]:
        """All end-of-sequence ids: from generation_config.json, config.json and the tokenizer."""
        for source in (self.generation, config):
            ids = source.get("eos_token_id")
            listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
            if not all(isinstance(one, int) for one in listed):
                raise ModelError("eos_token_id must be a token id or a list of them.")
            yield from listed
        eos = named.get("eos_token")
        added = {token["content"]: token["id"] for token in spec["added_tokens"]}
        vocab = spec["model"].get("vocab")
        by_token = added if not isinstance(vocab, dict) else vocab | added
        if eos in by_token:
            yield by_token[eos]


def _placeholder_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """The placeholder token of an item of each modality, if the config names it."""
    tokens = {}
    for modality in ("image", "video", "audio"):
        names = (f"{modality}_token_id", f"{modality}_token_index")
        token = next((config[name] for name in names if isinstance(config.get(name), int)), None)
        if token is not None:
            tokens[modality] = token
    implied = _implied_image_id(config)
    return tokens if implied is None else {"image": implied, **tokens}


def _implied_image_id(config: Mapping[str, Any]) -> int | None:
    """The image placeholder of families whose config names another token."""
    start = (config.get("visual") or {}).get("image_start_id")
    if start is not None:  # Qwen-VL: the second token after the one before an image.
        return int(start) + 2
    if config.get("model_type") == "kanana-1.5-v":  # The token after the end-of-sequence token.
        return int(config["text_config"]["eos_token_id"]) + 1
    if config.get("model_type") == "nemotron_parse":  # The beginning-of-sequence token.
        start = config.get("decoder_start_token_id")
        return int(config["decoder"]["eos_token_id"] if start is None else start)
    number = config.get("img_start_id")  # HyperCLOVA X before `image_token_id` existed.
    return number if isinstance(number, int) else None


def entry(number: int, content: str, *, special: bool = False, **flags: Any) -> dict[str, Any]:
    """An entry of `added_tokens`: a token that is matched in text before merging."""
    values = {flag: bool(flags.get(flag, False)) for flag in _FLAGS}
    return {"id": number, "content": content, "special": special, **values}


def read_template(path: Path) -> str:
    """Read a chat template. Raises `SettingsError` if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"The chat template {path} cannot be read: {error}.") from error


def _named_template(entry: Any) -> tuple[str, str]:
    """A template of a list in tokenizer_config.json. Raises `SettingsError`."""
    name, template = (
        (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else ("", None)
    )
    if isinstance(name, str) and isinstance(template, str):
        return name, template
    raise SettingsError(
        "tokenizer_config.json: each chat_template of a list needs a name and a template. "
        "Correct it, or give a file with --tokenizer.chat-template."
    )


def _content(token: object) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None
