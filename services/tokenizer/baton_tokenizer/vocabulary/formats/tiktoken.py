"""tiktoken files: one base64 token and its rank per line.

The pre-tokenizer expressions and special tokens are only in the Python code of each checkpoint,
which is never run; `FAMILIES` lists them.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any, NamedTuple

from baton.errors import ModelError
from baton_tokenizer.vocabulary.bpe_ranks import add_tokens, ranked_spec
from baton_tokenizer.vocabulary.formats.checkpoint_folder import Folder, entry
from baton_tokenizer.vocabulary.post_processor import frame
from baton_tokenizer.vocabulary.pretokenizers import cut
from baton_tokenizer.vocabulary.vocabulary import Source

_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s")
_PROBE = 512
"""Number of bytes read to distinguish a text file of ranks from a sentencepiece model of the same
name."""


class Family(NamedTuple):
    """Checkpoints whose tokenizers differ only in their ranks."""

    cut: str
    """Pre-tokenizer of `baton_tokenizer.vocabulary.pretokenizers`."""
    classes: tuple[str, ...]
    """`tokenizer_class` in tokenizer_config.json."""
    specials: tuple[str, ...] = ()
    """Special tokens after the last rank; `{id}` in a name is replaced by its id."""
    compose: bool = False
    """Normalize text to Unicode NFC."""
    before: tuple[str, ...] = ()
    """First tokens of every text."""
    eos: str = ""
    """End-of-sequence token, if the checkpoint names none."""
    sees: bool = False
    """Whether these checkpoints have the encoder of Qwen-VL."""


_EXTRAS = tuple(f"<|extra_{number}|>" for number in range(205))

_SEEN = tuple(f"<{end}{name}>" for name in ("ref", "box", "quad", "img") for end in ("", "/"))
_SEEN += ("<imgpad>",)
"""Tokens of Qwen-VL for marked texts and images."""

FAMILIES: dict[str, Family] = {
    "qwen": Family(
        "qwen2",
        ("QWenTokenizer",),
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRAS),
        compose=True,
        eos="<|im_end|>",
    ),
    "qwen-vl": Family(
        "qwen2",
        ("QWenTokenizer",),
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRAS, *_SEEN),
        compose=True,
        eos="<|im_end|>",
        sees=True,
    ),
    "hunyuan": Family(
        "qwen2",
        ("HYTokenizer", "HunYuanTokenizer"),
        ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRAS),
        compose=True,
        eos="<|eos|>",
    ),
    "kimi": Family("kimi-k2", ("TikTokenTokenizer",), ("<|reserved_token_{id}|>",) * 256),
    "glm": Family("glm4", ("ChatGLM4Tokenizer", "ChatGLMTokenizer"), before=("[gMASK]", "<sop>")),
}
"""Families by name."""


class Tiktoken:
    """A vocabulary in the format of https://github.com/openai/tiktoken."""

    @staticmethod
    def fits(path: Path) -> bool:
        """Whether the folder has such a file."""
        return _file(path) is not None

    @staticmethod
    def read(path: Path) -> Source:
        """Read the tokenizer of a folder. Raises `ModelError` if its family is not in the table."""
        file, folder = _file(path), Folder(path)
        assert file is not None
        ranks, family = read_ranks(file), _family(folder)
        spec = ranked_spec(ranks, cut(family.cut).patterns, compose=family.compose)
        first = max(ranks.values()) + 1
        names = [name.format(id=first + i) for i, name in enumerate(family.specials)]
        added = {first + i: entry(first + i, name, special=True) for i, name in enumerate(names)}
        added |= {token["id"]: token for token in folder.added_tokens}
        spec = add_tokens(spec, [added[i] for i in sorted(added)])
        spec["post_processor"] = _frame(family, spec["model"]["vocab"])
        return folder.source(spec, {"eos_token": family.eos} if family.eos else {})


def read_ranks(file: Path) -> dict[bytes, int]:
    """Read token -> rank. Raises `ModelError` for an invalid line or a duplicate rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ModelError(
                f"Line {number} of {file.name} is not a token and its rank."
            ) from error
    if len(set(ranks.values())) != len(ranks) or not ranks:
        raise ModelError(f"{file.name} gives one rank to several tokens, or to none.")
    return ranks


def _file(path: Path) -> Path | None:
    files = sorted(path.glob("*.tiktoken"))
    named = [path / name for name in ("tiktoken.model", "tokenizer.model")]
    return next((f for f in (*files, *named) if f.is_file() and _is_ranks(f)), None)


def _is_ranks(file: Path) -> bool:
    with file.open("rb") as content:
        return _LINE.match(content.read(_PROBE)) is not None


def _family(folder: Folder) -> Family:
    named = folder.tokenizer_class
    for family in FAMILIES.values():
        if named in family.classes and family.sees == folder.has_qwen_vl_vision:
            return family
    known = ", ".join(dict.fromkeys(n for family in FAMILIES.values() for n in family.classes))
    raise ModelError(
        f"A tiktoken file does not say how text is cut, and '{named}' in tokenizer_config.json is "
        f"not known. Known: {known}. Add a row to baton_tokenizer/vocabulary/formats/tiktoken.py, "
        "or save a tokenizer.json with transformers."
    )


def _frame(family: Family, vocab: dict[str, int]) -> dict[str, Any] | None:
    return frame([(name, vocab[name]) for name in family.before if name in vocab], [])
