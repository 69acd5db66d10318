"""Chunks are written in order, and a failed stream does not affect the others."""

from __future__ import annotations

import logging

import pytest

from baton_gateway.http.write_batch import WriteBatch


class Body:
    """Shares the list of what was written, in order."""

    def __init__(self, written: list[bytes], *, broken: bool = False) -> None:
        self.written, self.broken, self.gone = written, broken, False

    def write(self, data: bytes) -> None:
        if self.broken:
            raise RuntimeError("unable to perform operation; the handler is closed")
        self.written.append(data)

    def cut(self) -> None:
        self.gone = True


def test_outside_everything_is_written_at_once() -> None:
    burst, written = WriteBatch(), list[bytes]()
    burst.add(Body(written), b"a")
    assert written == [b"a"]


def test_inside_everything_waits_for_the_end() -> None:
    burst, written = WriteBatch(), list[bytes]()
    one, two = Body(written), Body(written)
    with burst:
        for body, data in ((one, b"a"), (two, b"b"), (one, b"c")):
            burst.add(body, data)
        assert not written
    assert written == [b"a", b"b", b"c"]
    burst.add(two, b"d")
    with burst:
        pass
    assert written == [b"a", b"b", b"c", b"d"]


def test_what_is_made_before_something_breaks_is_written() -> None:
    burst, written = WriteBatch(), list[bytes]()
    with pytest.raises(KeyError), burst:
        burst.add(Body(written), b"a")
        raise KeyError
    assert written == [b"a"]


def test_a_body_that_breaks_is_cut_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    burst, written = WriteBatch(), list[bytes]()
    good, bad = Body(written), Body(written, broken=True)
    with caplog.at_level(logging.ERROR), burst:
        burst.add(bad, b"a")
        burst.add(good, b"b")
    assert written == [b"b"] and bad.gone and not good.gone
    assert "a stream broke off" in caplog.text
