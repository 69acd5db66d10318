"""Encoding of parts, and the choice of the journal."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.config import Config
from baton_gateway.durable import JOURNALS
from baton_gateway.durable.journal import decode, encode, open_journal
from baton_gateway.durable.redis import RedisJournal
from baton_gateway.durable.sqlite import SqliteJournal
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.pieces import Content

_INT = st.integers(0, 2**31 - 1)
_LOGPROB = st.builds(
    TokenLogprob,
    _INT,
    st.floats(allow_nan=False),
    _INT,
    st.lists(st.tuples(_INT, st.floats(allow_nan=False)), max_size=3).map(tuple),
)


@given(
    choice=_INT,
    text=st.text(),
    tokens=st.lists(_INT, max_size=5).map(lambda ids: array("i", ids)),
    ends=st.lists(_INT, max_size=5).map(tuple),
    logprobs=st.lists(_LOGPROB, max_size=3).map(tuple),
    reason=st.none() | st.sampled_from(["stop", "length"]),
    stop=st.none() | st.text() | _INT,
    cached=_INT,
    pieces=st.lists(st.builds(Content, st.text()), max_size=3).map(tuple),
)
def test_a_part_is_its_delta(**fields: Any) -> None:
    delta = OutputDelta(**fields)
    assert decode(encode(delta)) == delta


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, SqliteJournal),
        ({"redis_url": "redis://localhost"}, RedisJournal),
        ({"redis_url": "redis://localhost", "journal": "sqlite"}, SqliteJournal),
    ],
)
def test_which_journal(settings: dict[str, str], kind: type) -> None:
    assert type(open_journal(Config(**settings))) is kind
    assert JOURNALS.names() == ("sqlite", "redis")


def test_an_unknown_journal_is_refused() -> None:
    with pytest.raises(Exception, match="sqlite, redis"):
        Config(journal="sqlight")
