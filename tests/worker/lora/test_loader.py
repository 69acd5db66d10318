"""Commands about adapters, carried out beside the steps and answered in order."""

from __future__ import annotations

import time

import pytest

from baton.protocol import DropAdapter, LoadAdapter, UnloadAdapter, WorkerCommand, WorkerReply
from baton_worker.lora.loader import AdapterLoader
from baton_worker.lora.store import AdapterStore
from tests.support.worker.adapted_model import NAMES, Adapted

pytestmark = pytest.mark.row("F11.04")


def answers(loader: AdapterLoader) -> list[WorkerReply]:
    found, end = [], time.monotonic() + 60
    while loader.busy:
        assert time.monotonic() < end
        found += loader.finished()
        time.sleep(0.001)
    return found


def test_adapters_come_and_go_in_the_order_of_the_commands(adapted: Adapted) -> None:
    store = AdapterStore(adapted.store.targets, 16, capacity=2)
    loader, (one, two, three) = AdapterLoader(store), (str(adapted.folders[n]) for n in NAMES)
    actions = [
        LoadAdapter("a", one),
        LoadAdapter("a", two, replace=True),
        LoadAdapter("c", three),
        LoadAdapter("x", "no-such-folder" * 500),
        DropAdapter(adapted.digest("one")),
        LoadAdapter("c", three),
        UnloadAdapter("a"),
    ]
    for number, action in enumerate(actions):
        loader.submit(WorkerCommand(9, number, action))
    replies = answers(loader)
    assert [reply.id for reply in replies] == [*range(7)] and {r.epoch for r in replies} == {9}
    assert [bool(reply.reason) for reply in replies] == [
        False,
        False,
        True,
        True,
        False,
        False,
        True,
    ]
    assert "--max-cpu-loras is 2" in replies[2].reason and "adapter_config" in replies[3].reason
    digests = [[info.digest for info in reply.adapters] for reply in replies]
    digest = {name: adapted.digest(name) for name in NAMES}
    assert digests[1] == [digest["one"], digest["two"]], (
        "both meanings of a name, the last one last"
    )
    assert digests[-1] == [digest["two"], digest["three"]]
    assert replies[5].digest == digest["three"] and store.get(digest["one"]) is None
    assert store.infos[0].path == two
    loader.close()


def test_what_a_lost_scheduler_asked_is_not_answered(adapted: Adapted) -> None:
    loader = AdapterLoader(AdapterStore(adapted.store.targets, 16, 2))
    loader.submit(WorkerCommand(1, 1, LoadAdapter("a", str(adapted.folders["one"]))))
    loader.reset()
    assert answers(loader) == []
    loader.close()


def test_a_worker_without_adapters_says_so() -> None:
    loader = AdapterLoader(None)
    loader.submit(WorkerCommand(1, 2, LoadAdapter("a", "/x")))
    (reply,) = answers(loader)
    assert "--enable-lora" in reply.reason and reply.id == 2
    loader.close()
