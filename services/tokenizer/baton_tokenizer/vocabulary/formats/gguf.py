"""Vocabularies in GGUF files, converted back to the original tokenizer.json.

Metadata keys follow https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, kinds and defaults
`llama_vocab::impl::load` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baton.checkpoint.gguf_header import read_metadata, split_parts
from baton.checkpoint.gguf_projector import read_projector
from baton.errors import ModelError
from baton_tokenizer.vocabulary.post_processor import Token, bert_frame, frame
from baton_tokenizer.vocabulary.pretokenizers import byte_level, cut, pre_tokenizer
from baton_tokenizer.vocabulary.sentencepiece_model import Pieces, TokenType
from baton_tokenizer.vocabulary.vocabulary import Source

_TEMPLATE = "tokenizer.chat_template"
_ENDS = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>"),
        *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<end_of_utterance>"),
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>"),
    )
)
"""Texts that end a generation, whatever the metadata says of their tokens."""
_FILL_IN_MIDDLE = {
    "fim_pad": {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    "fim_rep": {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    "fim_sep": {"<|file_sep|>"},
}
"""Tokens of code infilling that end a generation, with their texts where no metadata names them."""
_HARMONY = ({"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"})
"""A format with one of each has "<|end|>" behind each of the several messages of a turn."""
_WORD = "▁"
"""Prefix of tokens that start a word in WordPiece vocabularies of GGUF files, which have no
"##"."""


class Metadata:
    """Tokenizer metadata of a GGUF file."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def ggml(self, key: str, default: Any = None) -> Any:
        """The value of `tokenizer.ggml.<key>`."""
        return self._fields.get(f"tokenizer.ggml.{key}", default)

    def need(self, key: str) -> Any:
        """The value of `tokenizer.ggml.<key>`. Raises `ModelError` when it is missing."""
        value = self.ggml(key)
        if value is None:
            raise ModelError(f"The GGUF file has no tokenizer.ggml.{key}: it holds no vocabulary.")
        return value

    def templates(self) -> dict[str, str]:
        """Chat templates by name."""
        keys = [key for key in self._fields if key.startswith(f"{_TEMPLATE}.")]
        named = {key.removeprefix(f"{_TEMPLATE}."): str(self._fields[key]) for key in keys}
        default = self._fields.get(_TEMPLATE)
        return named if default is None else named | {"default": default}

    def token(self, role: str) -> Token | None:
        """Name and id of `tokenizer.ggml.<role>_token_id`; None if it is missing."""
        tokens, number = self.need("tokens"), self.ggml(f"{role}_token_id")
        exists = number is not None and 0 <= number < len(tokens)
        return (tokens[number], number) if exists else None

    def frame(self, *, bos: bool = False, eos: bool = False) -> dict[str, Any] | None:
        """Post-processor with the first and last token; the defaults are those of the kind."""
        first, last = self.token("bos"), self.token("eos")
        first_tokens = [first] if first and self.ggml("add_bos_token", bos) else []
        last_tokens = [last] if last and self.ggml("add_eos_token", eos) else []
        return frame(first_tokens, last_tokens)


class Gguf:
    """A .gguf file, or a folder with one, or with one that is split."""

    @staticmethod
    def fits(path: Path) -> bool:
        """True if there is such a file."""
        return _file(path) is not None

    @staticmethod
    def read(path: Path) -> Source:
        """Read the tokenizer. Raises `ModelError` if its kind is not supported."""
        file = _file(path)
        assert file is not None
        return read_gguf(file)


def _file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    files = sorted(path.glob("*.gguf"))
    return files[0] if files and split_parts(files[0]) == files else None


def read_gguf(path: Path) -> Source:
    """Read the tokenizer of a GGUF file. Raises `ModelError` if its kind is not supported."""
    data = Metadata(read_metadata(path))
    tokens: list[str] = data.need("tokens")
    types = data.ggml("token_type") or [TokenType.NORMAL] * len(tokens)
    ends = _ends(data, tokens, types)
    places = _placeholder_ids(path)
    # Some files hold them as plain text, which a chat template could not write.
    marks = ends.union(places.values())
    types = [TokenType.CONTROL if i in marks else kind for i, kind in enumerate(types)]
    spec = _kind(data.need("model"))(data, tokens, types)
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep"}
    special_tokens = {
        role: data.token(key) for key, role in {**roles, "cls": "cls", "mask": "mask"}.items()
    }
    return Source(
        spec=spec,
        templates=data.templates(),
        named={f"{role}_token": token[0] for role, token in special_tokens.items() if token},
        eos_ids=_eos_ids(data, ends),
        media_ids=tuple(places.values()),
        placeholder_ids=places,
    )


def _placeholder_ids(path: Path) -> dict[str, int]:
    """The image token of a model with an image encoder beside it."""
    try:
        projector = read_projector(path)
    except ModelError:  # The worker serves texts alone, and says why.
        return {}
    return {} if projector is None else {"image": projector.config["image_token_id"]}


def _kind(kind: str) -> Callable[[Metadata, list[str], list[int]], dict[str, Any]]:
    if kind not in _KINDS:
        raise ModelError(
            f"The GGUF vocabulary is of kind '{kind}'. Supported: {', '.join(_KINDS)}. Serve the "
            "Hugging Face folder of this model instead."
        )
    return _KINDS[kind]


def _merged(data: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """ "gpt2": BPE with merges, on bytes or, if the pre-tokenizer requires it, on characters."""
    words = cut(data.ggml("pre") or ("gemma4" if data.ggml("model") == "gemma4" else "default"))
    model = {
        "type": "BPE",
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [_split(merge) for merge in data.need("merges")],
        "ignore_merges": words.whole_words,
    }
    spec = {
        "version": "1.0",
        "added_tokens": _added(tokens, types),
        "post_processor": data.frame(bos=words.adds_bos),
    }
    if words.raw:
        steps = Pieces(tokens, types, (), None, prefix="none").steps()
        pieces = pre_tokenizer(words.patterns)["pretokenizers"][:-1]
        split = {"type": "Sequence", "pretokenizers": pieces}
        return {**spec, **steps, "pre_tokenizer": split, "model": {**model, "byte_fallback": True}}
    return {
        **spec,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(words.patterns),
        "decoder": byte_level(),
        "model": model,
    }


def _split(merge: str) -> list[str]:
    """Split a merge into its sides. The left one may itself be a space."""
    middle = merge.index(" ", 1)
    return [merge[:middle], merge[middle + 1 :]]


def _scored(data: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """ "llama": SentencePiece BPE with scores and byte fallback."""
    pieces = Pieces(
        tokens,
        types,
        data.need("scores"),
        data.ggml("unknown_token_id", 0),
        prefix="always" if data.ggml("add_space_prefix", True) else "none",
    )
    return pieces.bpe() | {"post_processor": data.frame(bos=True)}


def _unigram(data: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """ "t5": SentencePiece with probabilities."""
    pieces = Pieces(
        tokens,
        types,
        data.need("scores"),
        data.ggml("unknown_token_id", 2),
        prefix="always" if data.ggml("add_space_prefix", True) else "none",
        charsmap=bytes(data.ggml("precompiled_charsmap", [])),
        squeezes=data.ggml("remove_extra_whitespaces", False),
        byte_fallback=TokenType.BYTE in types,
    )
    return pieces.unigram() | {"post_processor": data.frame(eos=True)}


def _wordpiece(data: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """ "bert": WordPiece, greedy longest match first."""
    names = [_word(token, kind) for token, kind in zip(tokens, types, strict=True)]
    first, last = data.token("bos") or data.token("cls"), data.token("seperator")
    last, unknown = last or data.token("eos"), data.token("unknown")
    if first is None or last is None or unknown is None:
        raise ModelError(
            "The GGUF vocabulary of kind 'bert' does not name the tokens that frame a text and the "
            "unknown one. Serve the Hugging Face folder of this model instead."
        )
    lowercase = data.ggml("normalizer.lowercase", True)
    accents = data.ggml("normalizer.strip_accents", lowercase)
    return {
        "version": "1.0",
        "added_tokens": _added(names, types),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": bert_frame(first, last),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "vocab": {name: i for i, name in enumerate(names)},
            "unk_token": unknown[0],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def _word(token: str, kind: int) -> str:
    if kind != TokenType.NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return token.removeprefix(_WORD) if token.startswith(_WORD) else f"##{token}"


_KINDS = {
    "gpt2": _merged,
    "gemma4": _merged,
    "llama": _scored,
    "t5": _unigram,
    "bert": _wordpiece,
}
"""`tokenizer.ggml.model` -> reader."""


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    return Pieces(tokens, types, (), None).added


def _eos_ids(data: Metadata, ends: set[int]) -> tuple[int, ...]:
    """Ids that end a generation: those that the metadata names, then those of known texts."""
    named = [data.token(role) for role in ("eos", "eot", "eom", *_FILL_IN_MIDDLE)]
    return tuple(dict.fromkeys([*(token[1] for token in named if token), *sorted(ends)]))


def _ends(data: Metadata, tokens: Sequence[str], types: Sequence[int]) -> set[int]:
    """Ids of the tokens that end a generation by their texts, as in llama.cpp, but for "</s>": it
    is a tag of HTML in Gemma's vocabularies, and counts as a control token only."""
    texts = _ENDS.union(*(t for role, t in _FILL_IN_MIDDLE.items() if not data.token(role)))
    if all(not ends.isdisjoint(tokens) for ends in _HARMONY):
        texts -= {"<|end|>"}
    controls = {i for i, kind in enumerate(types) if kind == TokenType.CONTROL}
    return {
        i for i, token in enumerate(tokens) if token in texts or (token == "</s>" and i in controls)
    }
