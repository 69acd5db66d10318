"""How byte-level vocabularies of GGUF files cut text into words before merging.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) and leaves the regular expressions to
the reader. These are the expressions of the original tokenizer.json files; the names are those of
`llama_vocab::impl::load` in llama.cpp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from baton.errors import ModelError


class Cut(NamedTuple):
    """A pre-tokenizer."""

    patterns: tuple[str, ...]
    """Applied one after the other; what matches becomes a word, and so does what lies between."""
    whole_words: bool = False
    """A word that is a token is that token, whatever the merges say."""
    adds_bos: bool = False
    """Texts begin with the beginning-of-sequence token unless the file says otherwise."""


_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffix: str, digits: str) -> str:
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_CJK = r"[一-龥\u0800-一가-퟿]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_gpt2 = Cut((_GPT2,))
_digits = Cut((r"\p{N}", _GPT2))
_qwen2 = Cut((_QWEN2,))
_llama3 = Cut((_LLAMA3,), whole_words=True, adds_bos=True)
_gpt4o = Cut((_cased(f"{_SUFFIX}?", r"\p{N}{1,3}"),))
_deepseek3 = Cut(_DEEPSEEK3)

CUTS: dict[str, Cut] = {
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "exaone4": _gpt2,
    "modern-bert": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "refact": _digits,
    "command-r": _digits,
    "codeshell": _digits,
    "exaone": _digits,
    "minerva-7b": _digits,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "stablelm2": _qwen2,
    "hunyuan": _qwen2,
    "megrez": _qwen2,
    "grok-2": _qwen2,
    "qwen35": Cut((_QWEN35,)),
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "falcon3": _llama3,
    "falcon-h1": _llama3,
    "pixtral": _llama3,
    "lfm2": _llama3,
    "dbrx": Cut((_LLAMA3,)),
    "smaug-bpe": Cut((_LLAMA3,)),
    "chatglm-bpe": Cut((_LLAMA3,)),
    "glm4": Cut((_LLAMA3,), whole_words=True),
    "tekken": Cut((_cased("", r"\p{N}"),), whole_words=True, adds_bos=True),
    "gpt-4o": _gpt4o,
    "llama4": _gpt4o,
    "deepseek-v3": _deepseek3,
    "hunyuan-dense": _deepseek3,
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "falcon": Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
}
"""By the name in the file."""


def cut(name: str) -> Cut:
    """The pre-tokenizer of that name. Raises `ModelError` for one that is not in the table."""
    if name not in CUTS:
        raise ModelError(
            f"The GGUF pre-tokenizer '{name}' is not known. Known: {', '.join(sorted(CUTS))}. Add "
            "its expressions to baton_tokenizer/pretokenizers.py, or serve the Hugging Face folder."
        )
    return CUTS[name]


def byte_level() -> dict[str, Any]:
    """The step of a tokenizer.json that spells words in bytes, and back."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }


def pre_tokenizer(patterns: tuple[str, ...]) -> dict[str, Any]:
    """The `pre_tokenizer` of a tokenizer.json: cut by `patterns`, then spell words in bytes."""
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level()]}
