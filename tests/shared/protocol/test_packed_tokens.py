"""Token ids that are not unpacked before they are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from baton.protocol import packed_tokens
from baton.protocol.packed_tokens import PackedTokens, num_tokens
from baton.protocol.token_columns import pack

IDS = [7, -1, 2**31 - 1, 0]


def test_ids_are_those_of_the_column() -> None:
    tokens = PackedTokens.of(IDS)
    assert list(tokens) == IDS and tokens[1] == -1 and list(tokens[2:]) == IDS[2:]
    assert tokens.column == pack(IDS) and isinstance(tokens, Sequence)
    assert list(PackedTokens(b"")) == [] and not PackedTokens(b"")


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9])
def test_the_tail_is_a_column(count: int) -> None:
    assert PackedTokens.of(IDS).tail(count) == pack(IDS[len(IDS) - min(count, len(IDS)) :])


def test_a_column_that_is_cut_off_is_refused_at_once() -> None:
    for column in (b"1", b"12345"):
        with pytest.raises(ValueError, match="multiple"):
            PackedTokens(column)
        with pytest.raises(ValueError, match="multiple"):
            num_tokens(column)


def test_nothing_is_unpacked_for_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = PackedTokens.of(IDS)
    monkeypatch.setattr(packed_tokens, "unpack", None)
    assert len(tokens) == num_tokens(tokens.column) == 4 and tokens.tail(1) == pack([0])
    with pytest.raises(TypeError):
        tokens.ids  # noqa: B018
