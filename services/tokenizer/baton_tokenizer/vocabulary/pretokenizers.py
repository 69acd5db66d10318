"""Pre-tokenizers of GGUF and tiktoken vocabularies, which split text into words before merging.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) but not its regular expressions; a
tiktoken file names none. The expressions are those of the original tokenizer.json files, the names
those of `llama_vocab::impl::load` in llama.cpp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from baton.errors import ModelError


class Cut(NamedTuple):
    """A pre-tokenizer."""

    patterns: tuple[str, ...]
    """Applied in order; both matches and the text between them become words."""
    whole_words: bool = False
    """A word that is a token is not split, regardless of merges."""
    adds_bos: bool = False
    """Texts start with the beginning-of-sequence token unless the file says otherwise."""
    raw: bool = False
    """Words are merged as characters, with "▁" for spaces, not as bytes."""


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

_KIMI = "|".join(
    (
        r"[\p{Han}]+",
        *(
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]{upper}"
            rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]{lower}{_SUFFIX}?"
            for upper, lower in (("*", "+"), ("+", "*"))
        ),
        rf"\p{{N}}{{1,3}}|{_TAIL}",
    )
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SPACES = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))

_gpt2 = Cut((_GPT2,))
_digits = Cut((r"\p{N}", _GPT2))
_qwen2 = Cut((_QWEN2,))
_llama3 = Cut((_LLAMA3,), whole_words=True, adds_bos=True)
_gpt4o = Cut((_cased(f"{_SUFFIX}?", r"\p{N}{1,3}"),))
_deepseek3 = Cut(_DEEPSEEK3)
_bloom = Cut((_BLOOM,))
_bailing = Cut(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_lines = Cut((r"[^\n]+|[\n]+",), raw=True)
_aya = Cut((r"\d{1,3}(?=(?:\d{3})*\b)", *_gpt4o.patterns))

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
    "glm5": Cut((_LLAMA3,), whole_words=True),
    "tekken": Cut((_cased("", r"\p{N}"),), whole_words=True, adds_bos=True),
    "gpt-4o": _gpt4o,
    "llama4": _gpt4o,
    "deepseek-v3": _deepseek3,
    "hunyuan-dense": _deepseek3,
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "falcon": Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Cut(
        (
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",  # Its list of ranges equals the letters with case.
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "jais": _gpt2,
    "jina-es": _gpt2,
    "jina-de": _gpt2,
    "jina-v1-en": _gpt2,
    "jina-v2-es": _gpt2,
    "jina-v2-de": _gpt2,
    "jina-v2-code": _gpt2,
    "roberta-bpe": _gpt2,
    "gigachat": _gpt2,
    "a.x-4.0": _gpt2,
    "mellum": _gpt2,
    "trillion": _gpt2,
    "granite-docling": _gpt2,
    "mellum2": _digits,
    "kormo": _qwen2,
    "f2llmv2": _qwen2,
    "solar-open": _qwen2,
    "laguna": Cut((r"[^\n]+|[\n]+", _QWEN2)),
    "ufakzeka": Cut((_QWEN2.removeprefix(f"{_SUFFIX}|"),)),
    "seed-coder": Cut(
        (
            rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}"
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
    "midm-2.0": _llama3,
    "jina-v5-nano": _llama3,
    "minicpm5": Cut((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), whole_words=True),
    "jais-2": Cut((_LLAMA3.replace(r"\s+(?!\S)|\s+", rf"{_SPACES}|\s{{1,2}}(?!\S)|\s{{1}}"),)),
    "minimax-m2": _gpt4o,
    "kanana2": _gpt4o,
    "talkie": _gpt4o,
    "granite-embed-multi-97m": _gpt4o._replace(whole_words=True),
    "tiny_aya": _aya,
    "cohere2moe": _aya,
    "youtu": Cut(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            _cased(f"{_SUFFIX}?", r"\p{N}"),
        ),
        whole_words=True,
    ),
    "joyai-llm": _deepseek3,
    "afmoe": Cut(
        (
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            _DEEPSEEK3[2],
        )
    ),
    "hy_v4": _deepseek3,
    "spark2_5": Cut(
        (
            *_DEEPSEEK3[:2],
            _DEEPSEEK3[2].replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]"),
            r"\p{N}",
        )
    ),
    "kimi-k2": Cut((_KIMI,)),
    "bailingmoe": _bailing,
    "bailingmoe2": _bailing,
    "llada-moe": _bailing,
    "exaone-moe": Cut(
        (
            rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "bloom": _bloom,
    "poro-chat": _bloom,
    "gpt3-finnish": _bloom,
    "viking": Cut((_BLOOM, r"\p{N}")),
    "superbpe": Cut((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "chameleon": Cut(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "gemma4": _lines,
    "granite-embed-multi-311m": _lines,
    "sarvam-moe": _lines,
}
"""Pre-tokenizers by `tokenizer.ggml.pre`."""


def cut(name: str) -> Cut:
    """The pre-tokenizer with this name. Raises `ModelError` if it is unknown."""
    if name not in CUTS:
        raise ModelError(
            f"The GGUF pre-tokenizer '{name}' is not known. Known: {', '.join(sorted(CUTS))}. Add "
            "its expressions to baton_tokenizer/vocabulary/pretokenizers.py, or serve the "
            "Hugging Face folder."
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
