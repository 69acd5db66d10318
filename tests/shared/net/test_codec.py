from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import WireError
from baton.net.codec import decode, encode
from baton.net.topology import FRONTEND, LINKS, Link
from baton.protocol import Abort, Envelope, Hello, Sampling, Submit, Tokens

GOOD = Submit(handle=7, request="r", tokens=b"\0\0\0\0", sampling=Sampling(max_tokens=3))


def test_a_message_round_trips_with_its_envelope() -> None:
    envelope = Envelope(epoch=5, deadline_ms=100, trace="00-1-2-3")
    assert decode(encode(GOOD, envelope), FRONTEND.requests) == (envelope, GOOD)


def test_a_message_of_another_link_is_refused() -> None:
    with pytest.raises(WireError):
        decode(encode(Tokens(b"", b"", b"", b"")), FRONTEND.requests)


def test_another_major_version_is_refused_by_number() -> None:
    with pytest.raises(WireError, match="protocol 99"):
        decode(encode(GOOD, Envelope(version=99)), FRONTEND.requests)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_the_number_of_frames_is_checked(count: int) -> None:
    with pytest.raises(WireError):
        decode([b"\x90"] * count, FRONTEND.requests)


def test_every_truncation_is_a_wire_error() -> None:
    head, body = encode(GOOD)
    for end in range(len(body)):
        with pytest.raises(WireError):
            decode([head, body[:end]], FRONTEND.requests)


@given(st.binary(max_size=200), st.sampled_from(LINKS))
def test_random_bytes_raise_wire_error_and_nothing_else(junk: bytes, link: Link) -> None:
    with pytest.raises(WireError):
        decode([encode(GOOD)[0], junk], FRONTEND.requests)
    with pytest.raises(WireError):
        decode([junk], link.replies)


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",  # an array that claims four billion items
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 10_000 + b"\x90",  # ten thousand levels deep
        b"\x92\xa5abort\xc7\x01\x05\x00",  # an extension type
        b"\x92\xa5abort\xa1\xff",  # invalid UTF-8
    ],
)
def test_hostile_frames_are_refused_without_allocation(body: bytes) -> None:
    with pytest.raises(WireError):
        decode([encode(GOOD)[0], body], FRONTEND.requests)


def test_fields_are_strictly_typed() -> None:
    wrong = msgspec.msgpack.encode(["abort", 5])
    with pytest.raises(WireError):
        decode([encode(GOOD)[0], wrong], (Abort, Hello))


def test_unknown_trailing_fields_are_refused() -> None:
    longer = msgspec.msgpack.encode(["abort", b"", "extra"])
    with pytest.raises(WireError):
        decode([encode(GOOD)[0], longer], (Abort, Hello))


def test_a_bad_frame_leaves_no_trace_in_the_decoder() -> None:
    head, body = encode(GOOD)
    for _ in range(200):
        with pytest.raises(WireError):
            decode([head, body[:-1]], FRONTEND.requests)
        assert decode([head, body], FRONTEND.requests)[1] == GOOD
