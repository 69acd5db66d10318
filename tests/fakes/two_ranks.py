"""Two ranks of a model for tests: this process leads, one that is kept alive follows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator, SingleRank
from baton_worker.distributed.host_ranks import HostRanks
from baton_worker.distributed.pipeline_parallel import Pipeline, rank_stage
from baton_worker.engine.startup import load_drafter
from baton_worker.executor.commands import Begin, End, Pipe, PutAdapter
from baton_worker.executor.leader import LedCache, LedHostPages, LedModel
from baton_worker.kernels.lora import LoraPair, TokenAdapters
from baton_worker.kv_cache import held_groups, one_group, page_groups
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Given:
    """What both ranks must know of a model that they serve."""

    path: str
    num_pages: int = 64
    page_size: int = 4
    host_pages: int = 8
    grouped: bool = False
    quantize: Literal["none", "int8", "int4"] = "none"
    experts: str | None = None
    context: int = 1
    stages: int = 1
    """2: a rank has a half of the layers, the leader the second one."""
    adapters: int = 0
    """Adapters that a step may mix; 0: none are served."""
    speculative: str = ""
    """As `--speculative-config`; the leader drafts."""

    def load(self, everyone: Communicator) -> LoadedModel:
        """This rank's part."""
        pipeline = None
        if self.stages > 1:
            pipeline = Pipeline(everyone, rank_stage(everyone.rank, 1, 2), 2)
        path = Path(self.path)
        build = BuildContext(
            CPU,
            torch.float32,
            quantization=self.quantize,
            adapters=TokenAdapters(self.adapters, 2048, CPU) if self.adapters else None,
        )
        loaded = load_model(
            path,
            build,
            split=ModelSplit(
                SingleRank() if pipeline else everyone,
                pipeline=pipeline,
                experts=self.experts,
                context_parallel=self.context,
            ),
        )
        settings = Config(model=self.path, speculative_config=self.speculative)
        drafter = load_drafter(settings, loaded, path, build, everyone, ())
        return replace(loaded, drafter=drafter)

    def pages(self, loaded: LoadedModel) -> dict[str, Any]:
        """The arguments of the cache."""
        groups = None
        if self.grouped:
            groups = page_groups(
                loaded.kv_spec if self.speculative else loaded.unstaged,
                self.page_size,
                torch.float32,
            )
        elif self.stages > 1:
            groups = one_group(loaded.unstaged, self.page_size)
        return {
            "spec": loaded.kv_spec,
            "num_pages": self.num_pages,
            "page_size": self.page_size,
            "dtype": torch.float32,
            "device": CPU,
            "groups": groups and held_groups(groups, loaded.kv_spec),
            "spare": int(self.context > 1 or bool(self.speculative)),
        }


@dataclass(frozen=True)
class Led:
    """What the leader has of a model on two ranks."""

    loaded: LoadedModel
    """Its model runs on both."""
    cache: LedCache
    host: LedHostPages


class TwoRanks:
    """A leader. Models come one after the other."""

    def __init__(self, meeting: Path) -> None:
        command = [sys.executable, "-m", "tests.fakes.second_rank", str(meeting)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)
        self.commands = Pipe([cast(BinaryIO, self.process.stdin)])
        self.ranks = HostRanks(meeting, 0, 2)

    @contextmanager
    def serving(self, path: Path, **changes: Any) -> Iterator[Led]:
        """Serve a checkpoint on both ranks, in float32. `changes` are of the fields of `Given`."""
        given = Given(str(path), **changes)
        self.commands.send(Begin(1, 2, "", asdict(given)))
        try:
            loaded = given.load(self.ranks)
            assert isinstance(loaded.model, Model)
            cache = LedCache(**given.pages(loaded), commands=self.commands)
            host = LedHostPages(cache, given.host_pages, self.commands)
            ranks = SingleRank() if given.stages > 1 else self.ranks
            model = LedModel(loaded.model, self.commands, ranks)
            yield Led(replace(loaded, model=model), cache, host)  # type: ignore[arg-type]
        finally:
            self.commands.send(End())

    def put_adapter(self, slot: int, pairs: Mapping[str, LoraPair]) -> None:
        """As `LeaderExecutor` does."""
        each = [(name, *pair) for name, pair in pairs.items()]
        self.commands.send(PutAdapter(slot, each))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
