"""SentencePiece models: tokenizer.model or spiece.model of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.errors import ModelError
from baton_tokenizer.vocabulary.formats.checkpoint_folder import Folder
from baton_tokenizer.vocabulary.post_processor import frame
from baton_tokenizer.vocabulary.sentencepiece_model import Pieces
from baton_tokenizer.vocabulary.vocabulary import Source

_FILES = ("tokenizer.model", "spiece.model")
_UNIGRAM, _BPE = 1, 2
_ENDED = frozenset(("T5Tokenizer",))
"""Tokenizer classes that add no first token and end with the end-of-sequence token."""
_RENUMBERED = frozenset(
    (
        *("XLMRobertaTokenizer", "CamembertTokenizer", "BarthezTokenizer", "MBartTokenizer"),
        *("MBart50Tokenizer", "NllbTokenizer", "M2M100Tokenizer", "PegasusTokenizer"),
        *("XGLMTokenizer", "BigBirdTokenizer", "XLNetTokenizer", "AlbertTokenizer"),
    )
)
"""Tokenizer classes with their own numbering or special tokens; all publish a tokenizer.json."""
_REWRITES = "SiglipTokenizer"
"""Class that lowercases text and removes punctuation in code, which no file describes."""


class SentencePiece:
    """A model of https://github.com/google/sentencepiece, BPE or unigram."""

    @staticmethod
    def fits(path: Path) -> bool:
        """True if the folder has such a file."""
        return any((path / name).is_file() for name in _FILES)

    @staticmethod
    def read(path: Path) -> Source:
        """Read the tokenizer of a folder. Raises `ModelError` if it cannot be converted exactly."""
        folder = Folder(path)
        file = next(path / name for name in _FILES if (path / name).is_file())
        if folder.tokenizer_class in _RENUMBERED:
            raise ModelError(
                f"{folder.tokenizer_class} numbers the tokens of {file.name} in its own way. "
                "Save its tokenizer.json with transformers and serve that."
            )
        if folder.tokenizer_class == _REWRITES:
            raise ModelError(
                f"{_REWRITES} rewrites a text before {file.name} sees it. Serve a checkpoint that "
                "has a tokenizer.json."
            )
        model = _parse(file)
        spec = _spec(model, file.name, legacy=bool(folder.settings.get("legacy")))
        roles = _roles(model) | folder.named
        _add(spec, folder.added_tokens)
        ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
        spec["post_processor"] = _frame(folder, roles, ids)
        return folder.source(spec, roles)


def _parse(file: Path) -> Any:
    """Parse the protocol buffer. Raises `ModelError` if it is invalid."""
    # Imported on use: no other format needs the protobuf runtime.
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ModelError(f"{file.name} is not a sentencepiece model: {error}.") from error
    if not model.pieces:
        raise ModelError(f"{file.name} is not a sentencepiece model: it has no pieces.")
    return model


def _spec(model: Any, name: str, *, legacy: bool) -> dict[str, Any]:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if why := _refusal(model):
        raise ModelError(f"{name} {why}. Save a tokenizer.json with transformers and serve that.")
    space = "always" if legacy else "first"
    types = [piece.type for piece in model.pieces]
    pieces = Pieces(
        tokens=[piece.piece for piece in model.pieces],
        types=types,
        scores=[piece.score for piece in model.pieces],
        unknown=types.index(2) if 2 in types else None,
        prefix=space if normalizer.add_dummy_prefix else "none",  # type: ignore[arg-type]
        charsmap=normalizer.precompiled_charsmap,
        squeezes=normalizer.remove_extra_whitespaces,
        byte_fallback=trainer.byte_fallback,
    )
    return pieces.bpe() if trainer.model_type == _BPE else pieces.unigram()


def _refusal(model: Any) -> str:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE):
        return "is a sentencepiece model of words or characters, which nothing here encodes"
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        return "writes spaces in another way than before words, which nothing here encodes"
    if model.denormalizer_spec.precompiled_charsmap:
        return "rewrites characters when it decodes, which cannot be streamed"
    return ""


def _roles(model: Any) -> dict[str, str]:
    """Special tokens of the model by role."""
    trainer, pieces = model.trainer_spec, {piece.piece for piece in model.pieces}
    named = {
        "bos_token": trainer.bos_piece,
        "eos_token": trainer.eos_piece,
        "unk_token": trainer.unk_piece,
        "pad_token": trainer.pad_piece,
    }
    return {role: token for role, token in named.items() if token in pieces}


def _add(spec: dict[str, Any], added: list[dict[str, Any]]) -> None:
    """Add tokens of the folder to the model, or replace its tokens of the same id."""
    by_id = {token["id"]: token for token in spec["added_tokens"]}
    by_id |= {token["id"]: token for token in added}
    spec["added_tokens"] = [by_id[i] for i in sorted(by_id)]
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, dict):
        vocab |= {token["content"]: token["id"] for token in added}


def _frame(folder: Folder, roles: dict[str, str], ids: dict[str, int]) -> dict[str, Any] | None:
    ended = folder.tokenizer_class in _ENDED

    def special(role: str, default: bool) -> list[tuple[str, int]]:
        token = roles.get(f"{role}_token", "")
        setting = folder.settings.get(f"add_{role}_token")
        add = default if setting is None else setting
        return [(token, ids[token])] if add and token in ids else []

    return frame(special("bos", not ended), special("eos", ended))
