"""Processes that look into files, and what their failures mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from baton.errors import Unavailable
from baton.process import child_pool
from baton.process.child_pool import ChildDied, ChildTimeout
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.processors.fixed_size import FixedSize
from baton_mm_preprocess.sandbox.pool import DecodePool
from baton_mm_preprocess.sandbox.process import Problem, Ready, Setup
from tests.support.tiny_dual_encoders import PROCESSORS, data_url, picture

SETUP = Setup(FixedSize(read_processor(PROCESSORS["CLIPModel"], ""), 50), 2**20, 50_000_000, 2**28)
GOOD = data_url(picture(40, 30))


@pytest.fixture
def children() -> Iterator[DecodePool]:
    made = DecodePool(SETUP, 1, 30.0)
    yield made
    made.close()


def look(children: DecodePool, url: str) -> Ready | Problem:
    return children.submit(lambda: children.prepare(url)).result(60)


def test_real_processes_answer_one_after_the_other(children: DecodePool) -> None:
    children.start()
    first, bad, second = (look(children, url) for url in (GOOD, "data:image/png;base64,aGk=", GOOD))
    assert isinstance(first, Ready) and first.tensor.shape == (3, 30, 30)
    assert isinstance(bad, Problem) and first == second


def test_a_bomb_costs_itself_alone(children: DecodePool) -> None:
    """Within the limit on pixels, and more than the memory of its process: 150 MB of pixels, and
    as many again to turn them."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    bomb = data_url(Image.new("RGB", (7_000, 7_000)), exif=exif)
    found = look(children, bomb)
    assert isinstance(found, Problem) and found.code == "image_too_large"
    assert "memory" in found.message
    assert isinstance(look(children, GOOD), Ready)


def test_items_of_a_request_run_side_by_side_and_keep_their_order() -> None:
    pool, pairs, gate = DecodePool(SETUP, 2, 30.0), threading.Barrier(2), threading.Event()

    def meet(item: int) -> int:
        pairs.wait(60)
        return item

    begun = list[int]()

    def begin(item: int) -> None:
        begun.append(item)
        assert item == 0 or gate.wait(60)

    try:
        assert list(pool.map(meet, range(4))) == [0, 1, 2, 3]
        with closing(pool.map(begin, range(9))) as results:
            next(results)
        gate.set()
    finally:
        pool.close()
    assert set(begun) <= {0, 1, 2}, "two helpers ran what nobody waits for any more"


def scripted(children: DecodePool, acts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of children: does what it is told."""

    def exchange(request: bytes, seconds: float, *, wall: bool) -> bytes:
        match acts.pop(0):
            case "late":
                raise ChildTimeout
            case "gone":
                raise ChildDied
        return msgspec.msgpack.encode(Problem("x", "y"))

    monkeypatch.setattr(children._children, "exchange", exchange)


@pytest.mark.parametrize(
    ("acts", "code"),
    [
        (["late", "late"], "image_too_large"),
        (["late", ""], "x"),
        (["gone", ""], "x"),
        (["gone", "gone"], "image_parse_error"),
    ],
)
def test_the_slow_is_refused_and_the_dead_tried_once_more(
    acts: list[str], code: str, monkeypatch: pytest.MonkeyPatch, children: DecodePool
) -> None:
    scripted(children, acts, monkeypatch)
    found = look(children, GOOD)
    assert isinstance(found, Problem) and found.code == code and acts == []


def test_a_real_child_is_killed_when_its_time_is_over() -> None:
    hurried = DecodePool(SETUP, 1, 1e-6)
    large = data_url(picture(1500, 1500))
    found = None
    while not isinstance(found, Problem):  # Whatever this machine does in that time.
        found = look(hurried, large)
    assert found.code == "image_too_large" and "1e-06 s" in found.message
    hurried.close()


def test_none_can_be_had(monkeypatch: pytest.MonkeyPatch, children: DecodePool) -> None:
    monkeypatch.setattr(child_pool.sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match=r"Media preprocessing.*Try again later"):
        look(children, GOOD)
