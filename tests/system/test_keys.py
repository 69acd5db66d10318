"""Five real processes with CURVE on all links serve requests and refuse unknown peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton.net.curve import CurveKeys
from baton.net.topology import (
    CONTROL,
    FLEET,
    FRONTEND,
    LINKS,
    PAGES,
    PIXELS,
    TOKENIZE,
    Link,
)
from baton_ops.commands.health import answers, listed
from baton_ops.commands.keys import make
from tests.support.served_system import Served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, stories: Path, keys: Path) -> Iterator[Served]:
    served = Served(
        tmp_path_factory.mktemp("served"),
        stories,
        "--run-dir",
        "run",
        "--curve-keys-dir",
        str(keys),
    )
    yield served.ready()
    served.close()


def socket(served: Served, link: str) -> str:
    return f"ipc://{served.log.parent}/run/{link}.sock"


def test_it_serves(served: Served) -> None:
    answer = served.complete(prompt="Once upon a time", max_tokens=8).json()
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    "link",
    [link for link in LINKS if link not in (PAGES, PIXELS, CONTROL)],
    ids=lambda link: link.name,
)
def test_a_stranger_hears_nothing(served: Served, link: Link) -> None:
    with pytest.raises(Unavailable):
        answers(link, socket(served, link.name), seconds=0.5)


def test_a_worker_may_ask_for_its_own_health_and_not_submit(served: Served, keys: Path) -> None:
    worker = CurveKeys.load(keys, "worker")
    assert listed(socket(served, FLEET.name), "worker-", keys=worker).state == "ready"
    for link in (FRONTEND, TOKENIZE):
        with pytest.raises(Unavailable):
            answers(link, socket(served, link.name), seconds=0.5, keys=worker)
