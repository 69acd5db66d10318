"""Commands about weights: carried out in order, answered between steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from baton.errors import ModelError
from baton.protocol import (
    Action,
    DropWeights,
    FileTransfer,
    LoadWeights,
    UpdateWeights,
    WeightVersion,
    WorkerCommand,
    WorkerReply,
)
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.weight_transfer.contents import source_of
from baton_worker.weight_transfer.spool import WeightSpool
from baton_worker.weight_transfer.updater import WeightUpdater

pytestmark = pytest.mark.row("F14.14")


class Fake:
    """Loads by its label, and refuses some."""

    def __init__(self, folder: Path, blocker: str | None = None) -> None:
        self.updater = WeightUpdater(
            WeightSpool(folder, "m"), self.load, lambda loaded: "", self.drop, blocker
        )
        self.drops = 0
        self.tried: list[Any] = []
        self.updater._try_out = self.try_out

    def load(self, version: WeightVersion) -> LoadedModel:
        if version.label == "large":
            raise ModelError("there is no room")
        if version.label == "broken":
            raise RuntimeError("out of memory")
        return cast(LoadedModel, version.label)

    def drop(self) -> None:
        self.drops += 1

    def try_out(self, loaded: LoadedModel) -> str:
        self.tried.append(loaded)
        return "it is not finite" if cast(str, loaded) == "nan" else ""

    def answers(self, *actions: Action) -> list[WorkerReply]:
        for number, action in enumerate(actions):
            self.updater.submit(WorkerCommand(9, number, action))
        return list(self._answers())

    def _answers(self) -> Iterator[WorkerReply]:
        end = time.monotonic() + 60
        while self.updater.busy:
            assert time.monotonic() < end
            yield from self.updater.finished()
            time.sleep(0.001)


def test_what_is_loaded_and_tried_out_can_be_taken_once(tmp_path: Path) -> None:
    path = tmp_path / "new.safetensors"
    path.write_bytes(b"weights")
    fake, source = Fake(tmp_path), source_of(path)

    def load(label: str) -> LoadWeights:
        return LoadWeights(WeightVersion(1, label, label.encode(), (source,)))

    received, missing, one, large, broken, nan = fake.answers(
        UpdateWeights(FileTransfer(str(path))),
        UpdateWeights(FileTransfer(str(tmp_path / "none"))),
        load("one"),
        load("large"),
        load("broken"),
        load("nan"),
    )
    assert received.source == source and received.digest == source.digest
    assert "none" in missing.reason and missing.source is None
    assert (one.reason, one.digest) == ("", b"one") and fake.tried == ["one", "nan"]
    assert [r.reason for r in (large, broken, nan)] == [
        "there is no room",
        "out of memory",
        "it is not finite",
    ]
    assert fake.updater.take(b"two") is None and fake.updater.take(b"one") is None
    assert fake.answers(load("one"))[0].digest == b"one"
    version, loaded = fake.updater.take(b"one") or (None, None)
    assert version is not None and version.label == "one" and cast(str, loaded) == "one"
    for forget in (lambda: fake.answers(DropWeights()), fake.updater.reset):
        fake.answers(load("one"))
        before = fake.drops
        forget()
        assert fake.drops == before + 1
        assert fake.updater.take(b"one") is None
    path.write_bytes(b"others")
    assert "has changed" in fake.answers(load("one"))[0].reason
    fake.updater.close()


def test_where_weights_do_not_change_that_is_said(tmp_path: Path) -> None:
    fake = Fake(tmp_path, "A group does not change.")
    replies = fake.answers(UpdateWeights(FileTransfer("/x")), DropWeights())
    assert [reply.reason for reply in replies] == ["A group does not change."] * 2
    fake.updater.close()
    sleeper = WeightUpdater.without_engine(WeightSpool(tmp_path, "m"))
    sleeper.submit(WorkerCommand(9, 1, LoadWeights(WeightVersion())))
    (reply,) = sleeper.finished()
    assert "sleeps" in reply.reason
    sleeper.close()
