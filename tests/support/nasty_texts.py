"""Texts that tell one tokenizer from another."""

from __future__ import annotations

import random

_WRITTEN = (
    *(
        "",
        " ",
        "  ",
        "hello world",
        " hello",
        "hello ",
        "a  b   c    d",
        "\n",
        "\n\n \n",
        "\t\ttab",
    ),
    *(
        "ünïcödé ñandú",
        "漢字かな交じり文",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈",
        "Ａｂｃ ﬁ ½ ²",
        "مرحبا بالعالم",
        "नमस्ते दुनिया",
    ),
    *(
        "e\u0301 \u0301x",
        "\u200b\u200d\ufeff",
        "don't I'LL we'Ve ſ's",
        "12345678901",
        "3.14159e-10",
    ),
    *("x" * 300, " " * 200, "ab" * 200, "\r\n\r\n a\r\n", "def f(x):\n    return x  # why\n"),
    *("<s> </s> [INST] <unk> <0x0A> ▁ ▁▁ <|im_end|>", "\x00\x01\x7f\x80\u0085\u00a0\u2003\u3000x"),
    *(
        "\U0001f600\U0010ffff\ue000",
        "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
        "ᚠᛇᚻ᛫ᛒᛦᚦ",
        "ガガ゙",
        "How's it?? :) http://a.b/c?d=e&f=%20",
    ),
)
_LETTERS = list("abcdefghij ABC  \n\t..,,'’0123456789éñ漢字かなカ🙂👩\u200d\u0301[]<>_/-▁s")
_RUNS = (" ", "  ", "\n", "a", "aa", "-", "=", "--", "\t")


def corpus(count: int = 400) -> list[str]:
    """Texts written to be odd, and `count` random ones; the same ones every time."""
    source = random.Random(0)
    mixed = [
        "".join(source.choice(_LETTERS) for _ in range(source.randrange(1, 60)))
        for _ in range(count // 2)
    ]
    runs = [
        "".join(source.choice(_RUNS) * source.randrange(1, 40) for _ in range(4))
        for _ in range(count // 2)
    ]
    return [*_WRITTEN, *mixed, *runs]


def prose(lines: int) -> list[str]:
    """Lines to train a tiny vocabulary on."""
    source = random.Random(1)
    words = ["the", "runner", "hands", "a", "baton", "to", "her", "team", "and", "they", "all"]
    words += ["hold", "it", "12", "345", "Zürich", "漢字", "naïve"]
    return [" ".join(source.choices(words, k=8)) + "." for _ in range(lines)]
