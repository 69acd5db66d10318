from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from baton.output_parsing.grammars.lark import Lark, either, listing, literal


class Bytes:
    """A vocabulary in which each byte is a token."""

    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = LLTokenizer(TokenizerWrapper(Bytes()))


def accepts(lark: Lark, start: str, text: str) -> bool:
    """Whether the whole text is of the grammar."""
    matcher = LLMatcher(TOKENIZER, lark.source(start), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def test_a_literal_is_that_text() -> None:
    for text in ("<｜x▁y｜>\n", 'a"b\\', "/(.*)/", "✿"):
        assert accepts(Lark(), literal(text), text)
        assert not accepts(Lark(), literal(text), text + "x")
    assert literal("") == ""


def test_items_of_a_list() -> None:
    a, b, c = map(literal, "abc")
    for required, optional, separator, good, bad in (
        ([a], [b, c], ",", ("a", "a,b", "a,c", "a,b,c"), ("", "b", "a,c,b", "a,")),
        ([], [b, c], ",", ("", "b", "c", "b,c"), (",b", "c,b", "b,")),
        ([a], [b], "", ("a", "ab"), ("b", "ba")),
        ([], [], ",", ("",), (",",)),
    ):
        expression = f"{literal('(')} {listing(required, optional, separator)} {literal(')')}"
        assert all(accepts(Lark(), expression, f"({text})") for text in good)
        assert not any(accepts(Lark(), expression, f"({text})") for text in bad)


def test_text_up_to_a_closer() -> None:
    lark = Lark()
    text = lark.text("</a>", 1, 9)
    assert accepts(lark, text, "x\n</b></a>") and accepts(lark, text, "</a</a>")
    assert not accepts(lark, text, "</a>") and not accepts(lark, text, "x</a>y</a>")
    assert not accepts(lark, text, "0123456789</a>")
    lark = Lark()
    text = lark.text("\n</a>\n")
    assert accepts(lark, text, "x\n</a>\n") and accepts(lark, text, "\n</a>\n")
    assert not accepts(lark, text, "x</a>\n") and not accepts(lark, text, "x</a>y\n</a>\n")
    lark = Lark()
    assert accepts(lark, f"{lark.until('</a>')} {literal('x')}", "any\n</b></a>x")


def test_rules_json_and_patterns() -> None:
    lark = Lark()
    number = lark.rule(lark.pattern("[0-9]{2}"))
    value = lark.json({"type": "array", "items": {"type": "integer"}})
    both = either([number, value])
    assert accepts(lark, both, "12") and accepts(lark, both, "[1, 2]")
    assert not accepts(lark, both, "1") and not accepts(lark, both, "[1,2]")
