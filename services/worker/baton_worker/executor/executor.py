"""Executors: a single process, the leader of several ranks, or a member of an expert group. The
engine uses all of them through one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from baton.errors import SettingsError
from baton_worker.attention.buffers import Buffers
from baton_worker.config import Config
from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.communicator import Communicator, SingleRank, numbers
from baton_worker.distributed.eplb.config import parse
from baton_worker.distributed.expert_parallel import LockstepModel
from baton_worker.distributed.pipeline_parallel import Pipeline
from baton_worker.distributed.process_groups import join
from baton_worker.distributed.rendezvous import Rendezvous
from baton_worker.distributed.step_sync import StepSync
from baton_worker.executor.commands import (
    BeginTrial,
    Capture,
    DropShard,
    EndTrial,
    LoadShard,
    PutAdapter,
    SwitchShard,
)
from baton_worker.executor.follower_pool import FollowerPool
from baton_worker.executor.kv_transfer import LeaderKVTransfer, of_rank
from baton_worker.executor.leader import LedCache, LedHostPages, LedModel
from baton_worker.graphs import GraphedModel
from baton_worker.graphs.startup import why_uncaptured
from baton_worker.kernels.lora import LoraPair
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.kv_transfer.manager import KVTransferManager


class Executor:
    """A single process with the whole model."""

    ranks: Communicator = SingleRank()
    """Communicator of the ranks that have a part of the same layers each."""
    pipeline: Pipeline | None = None
    """The place in a pipeline, where there are several stages."""
    lockstep: StepSync | None = None
    """Step synchronization, in an expert group."""
    name = ""
    """Name shared by the members of an expert group, for their lifetime."""

    @property
    def everyone(self) -> Communicator:
        """Communicator of all ranks, those of other stages included."""
        return self.ranks if self.pipeline is None else self.pipeline.ranks

    def cache(self, **settings: Any) -> KVCache:
        """Allocate the KV cache; `settings` are the arguments of `KVCache`."""
        return KVCache(**settings)

    def host(self, cache: KVCache, num_pages: int) -> HostPages | None:
        """Pages in host memory, if configured."""
        return HostPages(cache, num_pages) if num_pages else None

    def kv_transfer(
        self, cache: KVCache, config: Config, name: str
    ) -> KVTransferManager | LeaderKVTransfer:
        """KV transfer of this worker, not started yet."""
        return KVTransferManager(cache, config, name)

    def model(self, model: Any) -> Any:
        """Wrap a model so that its forward passes run on all ranks."""
        return model

    def share_indices(self, model: Any, buffers: Buffers, groups: int) -> None:
        """Tell other ranks the indices of steps of `model`, one that `model` has returned, from the
        host arrays of these buffers; `groups` are those of the pages."""

    def capture(self, graphed: GraphedModel) -> str | None:
        """Capture steps on all ranks; see `graphs.startup.why_uncaptured`."""
        return why_uncaptured(graphed)

    def put_adapter(self, slot: int, pairs: Mapping[str, LoraPair]) -> None:
        """Put an adapter into a slot of the other ranks."""

    def load_beside(self, path: Path, patches: Sequence[Path]) -> None:
        """Have the other ranks load other weights beside those in use; any thread may ask."""

    def drop_beside(self) -> None:
        """Have the other ranks drop them; callable from any thread."""

    def begin_trial(self) -> str:
        """Run what follows on the weights beside, on all ranks, once each has loaded its part.
        Returns why that cannot be, or an empty string."""
        return ""

    def end_trial(self) -> None:
        """Run what follows on the weights in use."""

    def switch(self) -> None:
        """Let the other ranks switch to the weights loaded beside."""

    def warmed_up(self) -> None:
        """Mark the end of warm-up: later steps are of sequences."""

    def run_dummy_step(self) -> bool:
        """Without local work: join a step of other workers. Returns whether they run one."""
        return False

    def leave(self) -> None:
        """Returns when this worker can exit without failing a step of others."""

    def close(self) -> None:
        """No other process to end."""


class LeaderExecutor(Executor):
    """The leader of a group of followers."""

    def __init__(self, followers: FollowerPool, device: torch.device) -> None:
        self._followers, self._device = followers, device
        try:
            self.ranks, self.pipeline = followers.join(device)
        except BaseException:
            followers.close()
            raise

    def cache(self, **settings: Any) -> KVCache:
        """See `Executor`."""
        return LedCache(commands=self._followers.commands, **settings)

    def host(self, cache: KVCache, num_pages: int) -> HostPages | None:
        """See `Executor`."""
        return LedHostPages(cache, num_pages, self._followers.commands) if num_pages else None

    def kv_transfer(
        self, cache: KVCache, config: Config, name: str
    ) -> KVTransferManager | LeaderKVTransfer:
        """See `Executor`."""
        manager = KVTransferManager(cache, of_rank(config, 0), name)
        stages = ""
        if self.pipeline is not None:
            counts = self.pipeline.counts(len(cache.layers))
            stages = f"/stages of {','.join(map(str, counts))} layers"
        return LeaderKVTransfer(manager, self._followers.commands, self._followers.reports, stages)

    def model(self, model: Any) -> Any:
        """See `Executor`."""
        return LedModel(model, self._followers.commands, self.ranks)

    def share_indices(self, model: Any, buffers: Buffers, groups: int) -> None:
        """See `Executor`. What a CPU holds needs no copy to be sent. Stages run a step at different
        times, and cannot broadcast its tokens."""
        if self._device.type != "cpu" and self.pipeline is None:
            model.watch(buffers, groups)

    def capture(self, graphed: GraphedModel) -> str | None:
        """See `Executor`."""
        self._followers.commands.send(Capture())
        return why_uncaptured(graphed)

    def put_adapter(self, slot: int, pairs: Mapping[str, LoraPair]) -> None:
        """See `Executor`."""
        each = [(name, *pair) for name, pair in pairs.items()]
        self._followers.commands.send(PutAdapter(slot, each))

    def load_beside(self, path: Path, patches: Sequence[Path]) -> None:
        """See `Executor`."""
        self._followers.commands.send(LoadShard(str(path), list(map(str, patches))))

    def drop_beside(self) -> None:
        """See `Executor`."""
        self._followers.commands.send(DropShard())

    def begin_trial(self) -> str:
        """See `Executor`."""
        self._followers.commands.send(BeginTrial())
        able = numbers(self.everyone, 1, self._device)
        failed = [str(rank) for rank, loaded in enumerate(able) if not loaded]
        return f"Rank {', '.join(failed)} could not load them: its log says why." if failed else ""

    def end_trial(self) -> None:
        """See `Executor`."""
        self._followers.commands.send(EndTrial())

    def switch(self) -> None:
        """See `Executor`."""
        self._followers.commands.send(SwitchShard())

    def close(self) -> None:
        """End the followers."""
        self._followers.close()


class ExpertGroupExecutor(Executor):
    """One of several workers that share the experts, each with its own sequences and pages."""

    def __init__(self, config: Config, device: torch.device) -> None:
        rank, size = config.data_parallel_rank, config.data_parallel_size
        self._device = device
        self._rendezvous = Rendezvous.join(config.run_dir, rank, size)
        self.name = self._rendezvous.meeting.name
        group = join(self._rendezvous.meeting, rank, size, device)
        eplb = parse(config.eplb_config) if config.enable_eplb else None
        self.lockstep: StepSync = StepSync(group, config.all2all_backend, device, eplb)

    def model(self, model: Any) -> Any:
        """See `Executor`."""
        self._model = LockstepModel(model, self.lockstep)
        return self._model

    def warmed_up(self) -> None:
        """See `Executor`."""
        self.lockstep.warm = True

    def run_dummy_step(self) -> bool:
        """See `Executor`. Waits for all ranks."""
        return self._dummy_step(False)

    def leave(self) -> None:
        """See `Executor`: all ranks end together."""
        while not self.lockstep.all_over:
            self._dummy_step(True)
        self._rendezvous.leave()
        self.lockstep.agree(0, over=True)  # No rank exits before all have left the rendezvous.

    def _dummy_step(self, over: bool) -> bool:
        if not self.lockstep.agree(0, over):
            return False
        self._model.run_dummy_step(self._device)
        return True

    def close(self) -> None:
        """All ranks exit with this one."""
        self._rendezvous.close()


def check(config: Config) -> None:
    """Check that the numbers of processes are consistent.

    Raises:
        SettingsError: they are not.
    """
    if config.data_parallel_size > 1:
        _check_expert_group(config)
    _check_experts(config)
    if (context := config.decode_context_parallel_size) > 1:
        _check_context(context, config.tensor_parallel_size, config.block_size)
    if config.data_parallel_rank >= config.data_parallel_size:
        raise SettingsError(
            f"--data-parallel-rank {config.data_parallel_rank}: ranks are counted from 0, and "
            f"there are {config.data_parallel_size}."
        )
    ALL2ALL.load(config.all2all_backend)(SingleRank())


def _check_expert_group(config: Config) -> None:
    """Check that workers of a group share experts, and are one process each."""
    data = config.data_parallel_size
    if not config.enable_expert_parallel:
        raise SettingsError(
            f"--data-parallel-size {data}: workers that share no experts need no group. Start them "
            "without it, or add --enable-expert-parallel."
        )
    for flag, processes in (
        ("--pipeline-parallel-size", config.pipeline_parallel_size),
        ("--tensor-parallel-size", config.tensor_parallel_size),
    ):
        if processes > 1:
            raise SettingsError(
                f"--data-parallel-size {data} with --enable-expert-parallel: each worker of such a "
                f"group is one process. Leave out {flag} {processes}."
            )


def _check_experts(config: Config) -> None:
    """Check that several processes have experts, and that balanced ones have a group."""
    tensor, data = config.tensor_parallel_size, config.data_parallel_size
    if config.enable_expert_parallel and tensor == data == 1:
        raise SettingsError(
            "--enable-expert-parallel: one process has all experts. Add --tensor-parallel-size or "
            "--data-parallel-size, or leave it out."
        )
    if config.enable_eplb and data == 1:
        raise SettingsError(
            "--enable-eplb: experts move between the workers of an expert group. Add "
            "--data-parallel-size and --enable-expert-parallel, or leave it out."
        )
    if config.eplb_config and not config.enable_eplb:
        raise SettingsError("--eplb-config: experts are not balanced. Add --enable-eplb.")


def _check_context(context: int, ranks: int, page_size: int) -> None:
    """Check that ranks divide into context groups, and pages into equal parts."""
    for count, name in ((ranks, "--tensor-parallel-size"), (page_size, "--block-size")):
        if count % context:
            raise SettingsError(
                f"--decode-context-parallel-size {context}: {name} is {count}, which is no "
                "multiple of it. Choose another number, or leave it out."
            )


def assemble(
    config: Config, path: Path, device: torch.device, patches: Sequence[Path] = ()
) -> Executor:
    """Create the executor with all processes that the settings require; returns when they have
    joined. They load the checkpoint at `path`, and `patches` with tensors that replace some of it.

    Raises:
        SettingsError: the settings are inconsistent.
    """
    check(config)
    if config.data_parallel_size > 1:
        return ExpertGroupExecutor(config, device)
    return (
        Executor()
        if config.num_ranks == 1
        else LeaderExecutor(FollowerPool(config, path, patches), device)
    )
