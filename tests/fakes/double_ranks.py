"""Two ranks on device doubles: `python -m tests.fakes.double_ranks MEETING MODEL REPORT`
is the follower. Its report is what the host did in each command: a JSON list of
[command, uploads, downloads, how often it waited for the device, replays of steps with prompts]."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.attention.selector import AttentionSelector
from baton_worker.attention.staged_buffers import StagedBuffers
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.distributed.communicator import Arrival, Communicator
from baton_worker.distributed.host_ranks import HostRanks
from baton_worker.executor.commands import End, Reader, Step
from baton_worker.follower.follower import Follower
from baton_worker.follower.parent_death import die_with_parent
from baton_worker.follower.shard_update import Shard
from baton_worker.graphs import GraphedModel, Repeater, Sizes
from baton_worker.graphs.mixed_steps import MixedSteps
from baton_worker.graphs.startup import graphed_model
from baton_worker.kv_cache import KVCache, page_groups
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.device_double import DOUBLE, DeviceTensor, Double, device_double
from tests.fakes.triton_interpreter import interpreter

SIZES = Sizes((1, 2, 4), 64, mixed=(8, 16))


class DoubleRanks:
    """See `Communicator`, between tensors of doubles: as NCCL, no host waits for it."""

    def __init__(self, ranks: Communicator, double: Double) -> None:
        self._ranks, self._double = ranks, double
        self.rank, self.size = ranks.rank, ranks.size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return self._there(self._ranks.all_reduce(_here(tensor).clone()))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [self._there(part) for part in self._ranks.all_gather(_here(tensor))]

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        return lambda: self.all_gather(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        self._ranks.broadcast(_here(tensor), source)

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        raise NotImplementedError

    def send(self, tensor: Tensor, to: int) -> None:
        raise NotImplementedError

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        raise NotImplementedError

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        raise NotImplementedError

    def receive(self, tensor: Tensor, source: int) -> None:
        raise NotImplementedError

    def _there(self, tensor: Tensor) -> Tensor:
        return DeviceTensor(tensor, self._double)


def _here(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DeviceTensor)
    return tensor.on_host


def load(path: Path, ranks: Communicator) -> LoadedModel:
    """A rank's part of a model on its double."""
    attention = AttentionSelector("triton")
    return load_model(
        path, BuildContext(DOUBLE, torch.float32, attention=attention), split=ModelSplit(ranks)
    )


def replayed(loaded: LoadedModel, cache: KVCache, ranks: Communicator) -> GraphedModel:
    """The model with steps to capture, by the twin of CUDA graphs."""
    return graphed_model(loaded.model, cache, SIZES, DOUBLE, Repeater(), ranks)


@contextmanager
def mixed_replays() -> Iterator[list[int]]:
    """The number of tokens of each replay of a step with prompts."""
    sizes, plain = list[int](), MixedSteps.forward

    def counted(self: MixedSteps, *given: Any) -> Tensor:
        sizes.append(given[-1])
        return plain(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MixedSteps, "forward", counted)
        yield sizes


def follow(meeting: Path, model: Path, report: Path) -> None:
    """Rank 1, up to the command `End`."""
    commands, found = Reader(sys.stdin.buffer, DOUBLE), list[tuple[str, int, int, int, int]]()
    with (
        interpreter(),
        torch.inference_mode(),
        device_double() as double,
        mixed_replays() as mixed,
    ):
        ranks = DoubleRanks(HostRanks(meeting, 1, 2), double)
        loaded = load(model, ranks)
        assert isinstance(loaded.model, Model)
        settings = {"dtype": torch.float32, "device": DOUBLE, "spare": 1}
        groups = page_groups(loaded.kv_spec, 4, torch.float32)
        cache = KVCache(loaded.kv_spec, 64, 4, groups=groups, **settings)  # type: ignore[arg-type]
        buffers = StagedBuffers(DOUBLE, double)
        shard, graphs = Shard(loaded.model, cache), lambda _: replayed(loaded, cache, ranks)
        follower = Follower(shard, None, ranks, buffers=buffers, graphs=graphs)
        while not isinstance(command := commands.next(), End):
            double.clear()
            mixed.clear()
            if isinstance(command, Step):  # The leader has read the step before the last one.
                double.ended(but=1)
            follower._execute(command)
            counts, waits = double.counts, sum(double.blocking.values())
            told = counts["upload"], counts["download"], waits, len(mixed)
            found.append((type(command).__name__, *told))
    report.write_text(json.dumps(found))


if __name__ == "__main__":
    die_with_parent(sys.stdin.buffer)
    torch.set_num_threads(1)
    follow(*map(Path, sys.argv[1:4]))
