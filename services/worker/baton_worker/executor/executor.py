"""One process with the whole model, the leader of several, or one of a group that shares experts:
the engine cannot tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.communicator import Communicator, SingleRank
from baton_worker.distributed.expert_parallel import LockstepModel
from baton_worker.distributed.process_groups import join
from baton_worker.distributed.rendezvous import Rendezvous
from baton_worker.distributed.step_sync import StepSync
from baton_worker.executor.follower_pool import FollowerPool
from baton_worker.executor.kv_transfer import LeaderKVTransfer, of_rank
from baton_worker.executor.leader import LedCache, LedHostPages, LedModel
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.kv_transfer.manager import KVTransferManager


class Executor:
    """A process that has the whole model."""

    ranks: Communicator = SingleRank()
    """Who has the other parts of the model."""
    lockstep: StepSync | None = None
    """The workers that take every step together, if this is one of such a group."""
    name = ""
    """What only the workers of such a group are called, while they live."""

    def cache(self, **settings: Any) -> KVCache:
        """Pages; `settings` are the arguments of `KVCache`."""
        return KVCache(**settings)

    def host(self, cache: KVCache, num_pages: int) -> HostPages | None:
        """Pages in host memory, if there are any."""
        return HostPages(cache, num_pages) if num_pages else None

    def relay(
        self, cache: KVCache, config: Config, name: str
    ) -> KVTransferManager | LeaderKVTransfer:
        """What passes keys on to other workers, and takes theirs over; not started yet."""
        return KVTransferManager(cache, config, name)

    def model(self, model: Any) -> Any:
        """What runs the forward passes of a model."""
        return model

    def lend(self) -> bool:
        """There is nothing to run here: take part in what other workers run. Returns whether they
        did."""
        return False

    def leave(self) -> None:
        """This worker is to end: returns when that costs no other a step."""

    def close(self) -> None:
        """Nobody else has to end."""


class LeaderExecutor(Executor):
    """The leader of a crew, and the crew."""

    def __init__(self, crew: FollowerPool, device: torch.device) -> None:
        self._crew = crew
        self.ranks = crew.join(device)

    def cache(self, **settings: Any) -> KVCache:
        """See `Executor`."""
        return LedCache(orders=self._crew.orders, **settings)

    def host(self, cache: KVCache, num_pages: int) -> HostPages | None:
        """See `Executor`."""
        return LedHostPages(cache, num_pages, self._crew.orders) if num_pages else None

    def relay(
        self, cache: KVCache, config: Config, name: str
    ) -> KVTransferManager | LeaderKVTransfer:
        """See `Executor`."""
        own = KVTransferManager(cache, of_rank(config, 0), name)
        return LeaderKVTransfer(own, self._crew.orders, self._crew.reports)

    def model(self, model: Any) -> Any:
        """See `Executor`."""
        return LedModel(model, self._crew.orders, self.ranks)

    def close(self) -> None:
        """End the followers."""
        self._crew.close()


class ExpertGroupExecutor(Executor):
    """One of several workers that share the experts, each with sequences and pages of its own."""

    def __init__(self, config: Config, device: torch.device) -> None:
        rank, size = config.data_parallel_rank, config.data_parallel_size
        self._device = device
        self._bond = Rendezvous.join(config.run_dir, rank, size)
        self.name = self._bond.meeting.name
        group = join(self._bond.meeting, rank, size, device)
        self.lockstep: StepSync = StepSync(group, config.all2all_backend, device)

    def model(self, model: Any) -> Any:
        """See `Executor`."""
        self._model = LockstepModel(model, self.lockstep)
        return self._model

    def lend(self) -> bool:
        """See `Executor`. Waits for all of them."""
        return self._lent(False)

    def leave(self) -> None:
        """See `Executor`: all end together."""
        while not self.lockstep.all_over:
            self._lent(True)
        self._bond.leave()
        self.lockstep.agree(0, over=True)  # Nobody ends before all have loosened.

    def _lent(self, over: bool) -> bool:
        if not self.lockstep.agree(0, over):
            return False
        self._model.lend(self._device)
        return True

    def close(self) -> None:
        """All end with this one."""
        self._bond.close()


def check(config: Config) -> None:
    """Refuse numbers of processes that do not go together.

    Raises:
        SettingsError: see above.
    """
    tensor, data = config.tensor_parallel_size, config.data_parallel_size
    if data > 1 and not config.enable_expert_parallel:
        raise SettingsError(
            f"--data-parallel-size {data}: workers that share no experts need no group. Start them "
            "without it, or add --enable-expert-parallel."
        )
    if data > 1 and tensor > 1:
        raise SettingsError(
            f"--data-parallel-size {data} with --enable-expert-parallel: each worker of such a "
            f"group is one process. Leave out --tensor-parallel-size {tensor}."
        )
    if config.enable_expert_parallel and tensor == data == 1:
        raise SettingsError(
            "--enable-expert-parallel: one process has all experts. Add --tensor-parallel-size or "
            "--data-parallel-size, or leave it out."
        )
    if (context := config.decode_context_parallel_size) > 1:
        _check_context(context, tensor, config.block_size)
    if config.data_parallel_rank >= data:
        raise SettingsError(
            f"--data-parallel-rank {config.data_parallel_rank}: ranks are counted from 0, and "
            f"there are {data}."
        )
    ALL2ALL.load(config.all2all_backend)(SingleRank())


def _check_context(context: int, ranks: int, page_size: int) -> None:
    """Whether ranks come in groups, and each of a group has as many tokens of a page."""
    for count, what in ((ranks, "--tensor-parallel-size"), (page_size, "--block-size")):
        if count % context:
            raise SettingsError(
                f"--decode-context-parallel-size {context}: {what} is {count}, which is no "
                "multiple of it. Choose another number, or leave it out."
            )


def assemble(config: Config, path: Path, device: torch.device) -> Executor:
    """This process with as many others as the settings want; all of them have met.

    Raises:
        SettingsError: they do not go together.
    """
    check(config)
    if config.data_parallel_size > 1:
        return ExpertGroupExecutor(config, device)
    return (
        Executor()
        if config.tensor_parallel_size == 1
        else LeaderExecutor(FollowerPool(config, path), device)
    )
