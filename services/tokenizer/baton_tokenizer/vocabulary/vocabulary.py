"""A loaded vocabulary: encoder, encoder without special tokens, and properties for other
services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from baton.protocol import AnySpeechInfo, TokenizerInfo
from baton_tokenizer.vocabulary.pair_templates import PairTemplate
from baton_tokenizer.vocabulary.special_tokens import SpecialTokens
from baton_tokenizer.vocabulary.token_bytes import Spelling, spelling
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec

_MEDIA_TOKENS = frozenset(
    (
        *("<image>", "<|image|>", "<|image_1|>", "<|image_pad|>", "<image_soft_token>"),
        *("<start_of_image>", "<end_of_image>", "<img>", "</img>", "<IMG_CONTEXT>"),
        *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "<|vision_start|>", "<|vision_end|>"),
        *("<video>", "<|video|>", "<|video_pad|>"),
        *("<audio>", "<|audio|>", "<|audio_1|>", "<|AUDIO|>", "<|audio_pad|>", "<|audio_bos|>"),
        *("<|audio_eos|>", "<audio_soft_token>", "<start_of_audio>", "<end_of_audio>"),
        *("[AUDIO]", "[BEGIN_AUDIO]", "<|endoftext10|>", "<|endoftext11|>"),
    )
)
"""Names of media placeholder tokens in published multimodal models."""


@dataclass(frozen=True)
class Source:
    """Tokenizer of a checkpoint, independent of its file format."""

    spec: dict[str, Any]
    """Content of a tokenizer.json."""
    templates: Mapping[str, str]
    """Chat templates by name; "default" is the default."""
    named: Mapping[str, str]
    """Special tokens by role, as templates see them: bos_token, eos_token, ..."""
    eos_ids: tuple[int, ...] = ()
    media_ids: tuple[int, ...] = ()
    """Placeholder tokens named by the model's config."""
    placeholder_ids: Mapping[str, int] = field(default_factory=dict)
    """Those of them that represent an item, by modality."""
    response_template: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's declaration of its outputs."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Content of its generation_config.json."""
    task_prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that an embedding model reads before its input, by task."""
    pair_template: PairTemplate | None = None
    """Template that joins a query and a document; None if the post-processor does."""
    speech: AnySpeechInfo | None = None
    """Prompt information of a speech-to-text model; None for any other."""


@dataclass(frozen=True)
class TokenizerVocabulary:
    """A vocabulary, ready to use. Immutable after `build`."""

    tokenizer: Tokenizer
    literal: SpecialTokens
    """The same vocabulary, with the text of special tokens treated as plain text."""
    spelling: Spelling
    pieces: tuple[bytes, ...]
    """Entry i is token i as raw bytes; empty for unused ids."""
    special_ids: frozenset[int]
    longest: int
    """Maximum number of characters covered by one token."""
    templates: Mapping[str, str]
    named: Mapping[str, str]
    bos_id: int
    eos_ids: tuple[int, ...]
    media_ids: tuple[int, ...]
    response_template: Mapping[str, Any]
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """Text of an item's placeholder token, by modality."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    task_prompts: Mapping[str, str] = field(default_factory=dict)
    pair_template: PairTemplate | None = None
    speech: AnySpeechInfo | None = None

    def info(self, model: str) -> TokenizerInfo:
        """Properties for the `Hello` to gateways."""
        return TokenizerInfo(
            model=model,
            vocab_size=len(self.pieces),
            eos_ids=self.eos_ids,
            bos_id=self.bos_id,
            has_chat_template=bool(self.templates),
            special_ids=tuple(sorted(self.special_ids)),
            media_ids=self.media_ids,
            document_first=self.pair_template is not None and self.pair_template.document_first,
            speech=self.speech,
            task_prompts=dict(self.task_prompts),
        )


def build(source: Source) -> TokenizerVocabulary:
    """Build a vocabulary from its source. Raises `ModelError` if the parts are inconsistent."""
    tokenizer = compile_spec(source.spec)
    by_name = tokenizer.get_vocab(with_added_tokens=True)
    specials = {t["content"]: t["id"] for t in source.spec["added_tokens"] if t["special"]}
    rule = spelling(source.spec.get("decoder"))
    media = {by_name[name] for name in _MEDIA_TOKENS & specials.keys()} | set(source.media_ids)
    added = source.spec["added_tokens"]
    guarded = specials.keys() | {t["content"] for t in added if t["id"] in source.media_ids}
    return TokenizerVocabulary(
        tokenizer=tokenizer,
        literal=SpecialTokens(source.spec, guarded),
        spelling=rule,
        pieces=_pieces(by_name, rule),
        special_ids=frozenset(specials.values()),
        longest=max(map(len, by_name)),
        templates=source.templates,
        named=source.named,
        bos_id=by_name.get(source.named.get("bos_token", ""), -1),
        eos_ids=source.eos_ids,
        media_ids=tuple(sorted(media)),
        response_template=source.response_template,
        generation=source.generation,
        task_prompts=source.task_prompts,
        pair_template=source.pair_template,
        speech=source.speech,
        placeholders={
            modality: text
            for modality, token in source.placeholder_ids.items()
            if (text := tokenizer.id_to_token(token))
        },
    )


def _pieces(by_name: Mapping[str, int], rule: Spelling) -> tuple[bytes, ...]:
    pieces = [b""] * (max(by_name.values()) + 1)
    for name, token in by_name.items():
        pieces[token] = rule.spell(name)
    return tuple(pieces)
