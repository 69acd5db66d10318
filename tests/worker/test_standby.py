"""Standbys of workers: what they load, when, and as which worker they start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.checkpoint.hub import served_name
from baton.process import standby
from baton.protocol import WeightVersion
from baton.protocol.weights import WeightSource
from baton_worker import standby as module
from baton_worker.config import Config
from baton_worker.weight_transfer.spool import WeightSpool


def test_a_standby_takes_the_name_role_and_addresses_of_the_worker_that_it_replaces() -> None:
    own = Config(model="org/stories", threads=3)
    assert module.in_place_of((), own) is own
    words = ("--name", "decode-2", "--role", "decode", "--threads", "1", "--bind-kv", "tcp://a:1")
    called = module.in_place_of(words, own)
    changes = {"name": "decode-2", "role": "decode", "bind_kv": "tcp://a:1"}
    assert called == own.model_copy(update=changes)


def test_a_standby_loads_once_memory_has_room_or_it_is_called(
    stories: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, asked = Config(model=str(stories), run_dir=run_dir), list[int]()

    def has_room(checkpoint: Path, shared: int) -> bool:
        asked.append(shared)
        return len(asked) == 3

    monkeypatch.setattr(module, "has_room", has_room)
    monkeypatch.setattr(module, "_ROOM_SECONDS", 0.01)
    module.await_room(config)
    assert asked == [], "it is no standby"
    standby.hold()
    module.await_room(config)
    assert asked == [0, 0, 0]
    monkeypatch.setattr(module, "has_room", lambda checkpoint, shared: False)
    threading.Timer(0.2, standby.call).start()
    module.await_room(config)
    assert not standby.held()


class Engines:
    """Stands for `Engine`: remembers which versions were loaded and which are closed."""

    def __init__(self) -> None:
        self.loaded = list[WeightVersion | None]()
        self.closed = 0
        self.while_loading: Callable[[], None] = lambda: None
        self.cache = SimpleNamespace(planes=[torch.ones(4)])
        self.kept_pages: Any = None
        self.keeps_memory = True

    def build(self, config: Config, version: WeightVersion | None = None) -> Any:
        self.loaded.append(version)
        self.while_loading()
        return self

    def close(self) -> None:
        self.closed += 1


def test_a_standby_follows_the_weights_that_the_workers_use(
    stories: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, engines = Config(model=str(stories), run_dir=run_dir), Engines()
    monkeypatch.setattr(module, "Engine", engines)
    monkeypatch.setattr(module, "_ROOM_SECONDS", 0.01)
    spool, newer = WeightSpool(run_dir, served_name(config)), WeightVersion(1, "next")
    standby.hold()
    engines.while_loading = lambda: spool.use(newer)
    threading.Timer(0.5, standby.call).start()
    assert module.load_engine(config) is engines
    assert engines.loaded == [None, newer] and engines.closed == 1
    assert engines.cache.planes[0].count_nonzero() == 0, "what warming up has written"


def test_one_that_is_called_with_older_weights_loads_those_of_the_others(
    stories: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, engines = Config(model=str(stories), run_dir=run_dir), Engines()
    monkeypatch.setattr(module, "Engine", engines)
    spool, newer = WeightSpool(run_dir, served_name(config)), WeightVersion(1, "next")

    def called(seconds: float | None) -> list[str]:
        spool.use(newer)
        return ["--name", "two"]

    standby.hold(forks=called)
    assert module.load_engine(config) is engines
    assert engines.loaded == [None, newer] and standby.wait() == ("--name", "two")


def test_weights_that_are_gone_are_said_and_the_first_ones_loaded(
    stories: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, engines = Config(model=str(stories), run_dir=run_dir), Engines()
    monkeypatch.setattr(module, "Engine", engines)
    gone = WeightSource(str(run_dir / "gone"), b"x" * 32)
    spool = WeightSpool(run_dir, served_name(config))
    spool.use(WeightVersion(number=1, label="next", sources=(gone,)))
    module.load_engine(config)
    assert engines.loaded == [None] and "weights next are not loaded" in caplog.text
