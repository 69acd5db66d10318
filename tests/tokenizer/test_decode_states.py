"""Decode state of many sequences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import WireError
from baton.protocol import Decode, DecodedText, DecodeOpen
from baton.protocol.token_columns import pack, unpack
from baton_tokenizer.decode_states import DecodeStates
from baton_tokenizer.detokenize import Alphabet
from tests.fakes.vocabularies import byte_vocab

ALPHABET = Alphabet(byte_vocab())
PEER = b"gateway-1"


def message(
    rows: list[tuple[int, int, bytes, bool]] = (),  # type: ignore[assignment]
    *open: DecodeOpen,
    close: tuple[int, ...] = (),
) -> Decode:
    """Rows are (handle, first, tokens, last); a token is a byte."""
    return Decode(
        pack([r[0] for r in rows], "I"),
        pack([r[1] for r in rows], "I"),
        pack([len(r[2]) for r in rows], "B"),
        pack([t for r in rows for t in r[2]]),
        pack([r[3] for r in rows], "B"),
        open=open,
        close=pack(close, "I"),
    )


def columns(text: DecodedText) -> tuple[list[int], list[int], list[int]]:
    kinds = (text.handles, text.next, text.unknown)
    return tuple(list(unpack(c, "I")) for c in kinds)  # type: ignore[return-value]


def test_rows_of_one_step() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    opened = message([], DecodeOpen(1), DecodeOpen(2))
    assert sequences.decode(PEER, opened) == DecodedText(b"", b"", ())
    text = sequences.decode(PEER, message([(2, 0, b"a\xc3", False), (1, 0, b"xy", False)]))
    assert columns(text) == ([2, 1], [2, 2], [])
    assert text.texts == ("a", "xy") and text.ends == ((1, 1), (1, 2))
    text = sequences.decode(PEER, message([(2, 2, b"\xa9", False)]))
    assert text.texts == ("é",) and text.ends == ((2,),)


def test_tokens_that_are_known_are_skipped() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    sequences.decode(PEER, message([(1, 0, b"abc", False)], DecodeOpen(1)))
    text = sequences.decode(PEER, message([(1, 1, b"bcd", False)]))
    assert text.texts == ("d",) and text.ends == ((4,),)
    text = sequences.decode(PEER, message([(1, 0, b"ab", False)]))
    assert columns(text) == ([1], [4], []) and text.texts == ("",) and text.ends == ((),)


def test_a_gap_loses_the_state() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    sequences.decode(PEER, message([(1, 0, b"a", False)], DecodeOpen(1)))
    assert columns(sequences.decode(PEER, message([(1, 2, b"c", False)]))) == ([], [], [1])
    assert columns(sequences.decode(PEER, message([(1, 1, b"b", False)]))) == ([], [], [1])


def test_the_last_row_flushes_and_forgets() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    rows = [(1, 0, b"a\xc3", True)]
    text = sequences.decode(PEER, message(rows, DecodeOpen(1, stops=("ab",))))
    assert text.texts == ("a\ufffd",) and text.ends == ((0, 2),) and len(sequences) == 0


def test_a_last_row_may_be_empty() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    sequences.decode(PEER, message([(1, 0, b"a", False)], DecodeOpen(1, stops=("ab",))))
    text = sequences.decode(PEER, message([(1, 1, b"", True)]))
    assert text.texts == ("a",) and text.ends == ((),) and len(sequences) == 0


@pytest.mark.parametrize(("include", "expected"), [(False, "go "), (True, "go STOP")])
def test_a_stop_string_ends_a_sequence(include: bool, expected: str) -> None:
    sequences = DecodeStates(ALPHABET, 10)
    opening = DecodeOpen(1, stops=("STOP",), include_stop=include)
    first = sequences.decode(PEER, message([(1, 0, b"go ST", False)], opening))
    assert first.texts == ("go ",) and first.ends == ((1, 2, 3, 3, 3),)
    last = sequences.decode(PEER, message([(1, 5, b"OP more", False)]))
    assert first.texts[0] + last.texts[0] == expected
    assert last.stopped == {1: "STOP"} and columns(last) == ([1], [7], [])
    assert last.ends == ((3, len(expected)),) and len(sequences) == 0


def test_closing_forgets() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    sequences.decode(PEER, message([], DecodeOpen(1), DecodeOpen(2)))
    sequences.decode(PEER, message(close=(1, 7)))
    assert len(sequences) == 1


def test_gateways_do_not_share_handles() -> None:
    sequences = DecodeStates(ALPHABET, 10)
    sequences.decode(b"a", message([], DecodeOpen(1)))
    sequences.decode(b"b", message([(1, 0, b"xy", False)], DecodeOpen(1)))
    assert sequences.decode(b"a", message([(1, 0, b"z", False)])).texts == ("z",)
    sequences.drop(b"a")
    assert len(sequences) == 1
    assert columns(sequences.decode(b"a", message([(1, 1, b"z", False)]))) == ([], [], [1])


def test_the_longest_unused_is_forgotten() -> None:
    sequences = DecodeStates(ALPHABET, 2)
    sequences.decode(PEER, message([], DecodeOpen(1), DecodeOpen(2)))
    sequences.decode(PEER, message([(1, 0, b"a", False)]))
    sequences.decode(PEER, message([], DecodeOpen(3)))
    rows = [(h, first, b"b", False) for h, first in ((1, 1), (2, 0), (3, 0))]
    assert columns(sequences.decode(PEER, message(rows))) == ([1, 3], [2, 1], [2])


@pytest.mark.parametrize(
    "change",
    [
        {"handles": b"\0\0\0"},
        {"first": b""},
        {"counts": b"\2"},
        {"counts": b"\1\1"},
        {"last": b""},
        {"tokens": b"\0"},
    ],
)
def test_columns_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    sequences = DecodeStates(ALPHABET, 10)
    good = message([(1, 0, b"a", False)], DecodeOpen(1))
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    with pytest.raises(WireError, match="Decode"):
        sequences.decode(PEER, Decode(**(fields | change)))
    assert len(sequences) == 0


@given(
    data=st.lists(st.sampled_from([*b"ab<|>", *"é😀".encode(), 0xFF, 256, 263]), max_size=40),
    stops=st.lists(st.text("ab<|>é", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
    cut=st.integers(0, 40),
)
def test_another_tokenizer_takes_over_at_any_token(
    data: list[int], stops: list[str], include: bool, cut: int
) -> None:
    """The invariant that makes a lost tokenizer a pause: text is a function of the log."""
    opening = {"stops": tuple(stops), "include_stop": include}

    def one(
        sequences: DecodeStates, first: int, tokens: list[int], *open: DecodeOpen
    ) -> DecodedText:
        n, column = len(tokens), pack(tokens)
        end = pack([first + n == len(data)], "B")
        row = Decode(pack([1], "I"), pack([first], "I"), bytes([n]), column, end, open=open)
        return sequences.decode(PEER, row)

    whole = one(DecodeStates(ALPHABET, 1), 0, data, DecodeOpen(1, **opening))
    cut = min(cut, len(data))
    before = one(DecodeStates(ALPHABET, 1), 0, data[:cut], DecodeOpen(1, **opening))
    if before.stopped or cut == len(data):
        assert (before.texts, before.stopped) == (whole.texts, whole.stopped)
        return
    log = DecodeOpen(1, log=pack(data[:cut]), **opening)
    after = one(DecodeStates(ALPHABET, 1), cut, data[cut:], log)
    assert before.texts[0] + after.texts[0] == whole.texts[0]
    assert before.ends[0] + after.ends[0] == whole.ends[0]
    assert (after.next, after.stopped) == (whole.next, whole.stopped)


@given(st.binary(max_size=40), st.booleans())
def test_token_by_token_or_all_at_once(data: bytes, skip_special: bool) -> None:
    opening = DecodeOpen(1, skip_special=skip_special)
    slow, fast = DecodeStates(ALPHABET, 10), DecodeStates(ALPHABET, 10)
    whole = slow.decode(PEER, message([(1, 0, data, False)], opening))
    fast.decode(PEER, message([], opening))
    parts = [
        fast.decode(PEER, message([(1, at, data[at : at + 1], False)])) for at in range(len(data))
    ]
    assert "".join(part.texts[0] for part in parts) == whole.texts[0]
    assert tuple(end for part in parts for end in part.ends[0]) == whole.ends[0]
