"""Processes that look into files: they answer, take too long, die, and are replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from baton.errors import Unavailable
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.sandbox import pool as module
from baton_mm_preprocess.sandbox.pool import Child, ChildPool
from baton_mm_preprocess.sandbox.process import Problem, Ready, Setup
from tests.support.tiny_dual_encoders import PROCESSORS, data_url, picture

SETUP = Setup(read_processor(PROCESSORS["CLIPModel"], ""), 2**20, 50_000_000, 2**28)
GOOD = data_url(picture(40, 30))


@pytest.fixture
def children() -> Iterator[ChildPool]:
    made = ChildPool(SETUP, 1, 30.0)
    yield made
    made.close()


def look(children: ChildPool, url: str) -> Ready | Problem:
    return children.submit(lambda: children.prepare(url)).result(60)


def test_real_processes_answer_one_after_the_other(children: ChildPool) -> None:
    children.start()
    first, bad, second = (look(children, url) for url in (GOOD, "data:image/png;base64,aGk=", GOOD))
    assert isinstance(first, Ready) and first.tensor.shape == (3, 30, 30)
    assert isinstance(bad, Problem) and first == second


def test_a_bomb_costs_itself_alone(children: ChildPool) -> None:
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


class Script:
    """In place of a child: does what it is told, then lives or not."""

    made: list[Script]
    acts: list[str]

    def __init__(self, setup: Setup) -> None:
        self.closed = False
        Script.made.append(self)

    def exchange(self, message: object, seconds: float) -> bytes:
        import msgspec

        match Script.acts.pop(0):
            case "late":
                raise module.ChildTimeout
            case "gone":
                raise module.ChildDied
            case "fault":
                raise KeyError
        return msgspec.msgpack.encode(Problem("x", "y"))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("acts", "code", "made"),
    [
        (["late", "", ""], "image_too_large", 2),
        (["gone", "", ""], "x", 2),
        (["gone", "gone", ""], "image_parse_error", 3),
    ],
)
def test_the_slow_and_the_dead_are_replaced(
    acts: list[str], code: str, made: int, monkeypatch: pytest.MonkeyPatch, children: ChildPool
) -> None:
    monkeypatch.setattr(module, "Child", Script)
    Script.made, Script.acts = [], list(acts)
    found = look(children, GOOD)
    assert isinstance(found, Problem) and found.code == code
    look(children, GOOD)
    assert len(Script.made) == made and not Script.made[-1].closed
    assert all(script.closed for script in Script.made[:-1])


def test_a_child_in_mid_sentence_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, children: ChildPool
) -> None:
    monkeypatch.setattr(module, "Child", Script)
    Script.made, Script.acts = [], ["fault"]
    with pytest.raises(KeyError):
        look(children, GOOD)
    assert [script.closed for script in Script.made] == [True]


def test_a_real_child_is_killed_when_its_time_is_over() -> None:
    child = Child(SETUP)
    large = data_url(picture(1500, 1500))
    try:
        with pytest.raises(module.ChildTimeout):
            while True:  # Whatever this machine does in that time, it does not do it for ever.
                child.exchange(large, 1e-6)
    finally:
        child.close()


def test_one_that_has_died_is_noticed() -> None:
    child = Child(SETUP)
    child._process.kill()
    child._process.wait()
    with pytest.raises(module.ChildDied):
        child.exchange(GOOD, 30.0)
    child.close()


def test_none_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match="Try again later"):
        Child(SETUP)


def test_what_is_slow_delays_nobody_else() -> None:
    """Two processes: one waits for the other's end, which it could not if they took turns."""
    both = threading.Barrier(2, timeout=60)
    pair = ChildPool(SETUP, 2, 30.0)
    futures = [pair.submit(both.wait) for _ in range(2)]
    assert sorted(future.result(60) for future in futures) == [0, 1]
    pair.close()
