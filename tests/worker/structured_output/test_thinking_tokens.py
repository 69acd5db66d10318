from __future__ import annotations

import numpy as np

from baton.protocol import Thinking
from baton_worker.structured_output.matcher import Bits
from baton_worker.structured_output.thinking_tokens import ThinkingTokens

PIECES = (b"a", b"<", b"/t>", b"</t>", b"</t>a", b" \n", b"\n\n\n", b"")
TOKENS = ThinkingTokens(PIECES, Thinking("<t>", "</t>", True, closer_id=7))


def ids(bits: Bits) -> list[int]:
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()


def test_masks_of_thinking() -> None:
    assert ids(TOKENS.everything) == list(range(8))
    assert ids(TOKENS.texts) == list(range(8))  # the special closer is a tag
    assert ids(TOKENS.blank(2)) == [5]
    assert ids(TOKENS.blank(4)) == [5, 6]
    assert ids(TOKENS.across(b"x")) == [4]


def test_a_tag_is_written_with_its_own_token_or_to_its_end() -> None:
    assert ids(TOKENS.towards(b"</t>", b"", 7)) == [7]
    assert ids(TOKENS.towards(b"</t>", b"", -1)) == [1, 3]
    assert ids(TOKENS.towards(b"</t>", b"<", 7)) == [2]
    assert TOKENS.piece(7) == b"</t>" and TOKENS.piece(99) == b""


def test_how_much_of_the_closer_is_there() -> None:
    assert [TOKENS.partial_closer(text) for text in (b"a", b"a<", b"</t", b"</t>")] == [
        b"",
        b"<",
        b"</t",
        b"",
    ]
