"""A follower executes the leader's commands and holds no other state."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch

from baton.process.lifecycle import EXIT_SETTINGS
from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.distributed.communicator import SingleRank
from baton_worker.executor.commands import (
    Begin,
    Clear,
    Command,
    Copy,
    End,
    Forward,
    Load,
    LoadShard,
    Logits,
    Pipe,
    Reader,
    Store,
    SwitchShard,
    Zero,
)
from baton_worker.follower import follower
from baton_worker.follower.follower import Follower, follow
from baton_worker.follower.shard_update import Shard
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.layers.build_context import BuildContext

CPU = torch.device("cpu")


class Given(SingleRank):
    """A leader's hidden states come from nowhere; counts how often."""

    broadcasts = 0

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        assert source == 0 and tensor.shape == (2, 64)
        self.broadcasts += 1
        tensor.fill_(0.5)


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(CPU, torch.float32))


def pages(loaded: LoadedModel) -> KVCache:
    made = KVCache(loaded.spec, 8, 4, dtype=torch.float32, device=CPU)
    for layer in made.layers:
        layer.copy_(torch.randn(layer.shape, generator=torch.Generator().manual_seed(0)))
    return made


def obey(
    loaded: LoadedModel, cache: KVCache, *commands: Command, host: HostPages | None = None
) -> Any:
    """Let a follower carry out some commands and end."""
    model: Any = loaded.model
    reading, writing = os.pipe()
    ranks = Given()
    with os.fdopen(reading, "rb") as read:
        with os.fdopen(writing, "wb") as write:
            for command in commands:
                Pipe([write]).send(command)
        Follower(Shard(model, cache), host, ranks).run(Reader(read))
    return ranks


@pytest.mark.parametrize("whole", [False, True])
def test_it_runs_the_same_forward_pass(loaded: LoadedModel, whole: bool) -> None:
    tokens, positions = torch.tensor([1, 403, 407, 5]), torch.tensor([0, 1, 2, 0])
    batch = AttentionBatch.build([3, 1], [0, 0], [[2], [5]], 4, CPU)
    told, direct = pages(loaded), pages(loaded)
    ranks = obey(loaded, told, Forward(tokens, positions, batch, False), Logits((2, 64)))
    model: Any = loaded.model
    model.forward(tokens, positions, batch, direct)
    assert all(torch.equal(a, b) for a, b in zip(told.layers, direct.layers, strict=True))
    assert not torch.equal(told.layers[-1], pages(loaded).layers[-1])
    assert ranks.broadcasts == 1


def test_it_moves_pages_as_it_is_told(loaded: LoadedModel) -> None:
    told, before = pages(loaded), pages(loaded)
    commands = (Copy([1], [2]), Store([3], [0]), Clear(3, 0), Clear(4, 1), Load([0], [5]))
    obey(loaded, told, *commands, host=HostPages(told, 1))
    for layer, old in zip(told.layers, before.layers, strict=True):
        assert torch.equal(layer[2], old[1]) and torch.equal(layer[5], old[3])
        assert not layer[3].any() and not layer[4, 1:].any()
        assert torch.equal(layer[4, 0], old[4, 0]) and torch.equal(layer[0], old[0])
    obey(loaded, told, Zero())
    assert not any(layer.any() for layer in told.layers)


def test_it_refuses_what_it_cannot_do(loaded: LoadedModel) -> None:
    with pytest.raises(AssertionError, match="has host pages and this follower has none"):
        obey(loaded, pages(loaded), Store([1], [0]))
    with pytest.raises(AssertionError, match="Begin is no command for a running follower"):
        obey(loaded, pages(loaded), Begin(1, 2, "", {}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_change_of_the_weights_frees_the_earlier_ones(
    stories: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = BuildContext(CPU, torch.float32)
    resolved, unused = SimpleNamespace(host_pages=0), SimpleNamespace(start=int, close=int)
    used: list[weakref.ref[Any]] = []

    def shard(_config: Config, loaded: LoadedModel, _resolved: Any) -> Shard:
        model: Any = loaded.model
        used.append(weakref.ref(model))
        return Shard(model, pages(loaded))

    parts: dict[str, Any] = {
        "setup": lambda *_: None,
        "prepare": lambda *_: context,
        "join_stages": lambda *_: (SingleRank(), None),
        "load": lambda *_: (load_model(stories, context), resolved, None),
        "load_weights": lambda *_: loaded,
        "trial_config": lambda resolved: resolved,
        "_shard": shard,
        "_kv_transfer": lambda *_: unused,
    }
    for name, part in parts.items():
        monkeypatch.setattr(follower, name, part)

    def commands() -> Iterator[Command]:
        assert used[0]() is not None
        yield LoadShard("", [])
        yield SwitchShard()
        assert used[0]() is None and used[1]() is not None
        yield End()

    stream: Any = SimpleNamespace(next=commands().__next__)
    follow(Begin(1, 2, "", {}), stream)
    assert len(used) == 2


def test_its_exit_code_says_whether_a_restart_can_help(tmp_path: Path) -> None:
    settings = Config(device="cuda", tensor_parallel_size=2, run_dir=tmp_path).model_dump(
        mode="json"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "baton_worker.follower"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stderr is not None
    pipe: BinaryIO = process.stdin  # type: ignore[assignment]
    Pipe([pipe]).send(Begin(1, 2, str(tmp_path / "meeting"), settings))
    assert (
        b"baton worker, rank 1: --device cuda: PyTorch sees no GPU here." in process.stderr.read()
    )
    assert process.wait() == EXIT_SETTINGS
    process.communicate()
