"""One process with the whole model, the leader of several, or one of a group that shares experts:
the engine cannot tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.communicator import Alone, Communicator
from baton_worker.distributed.expert_parallel import LockstepModel
from baton_worker.distributed.process_groups import join
from baton_worker.distributed.rendezvous import Bond
from baton_worker.distributed.step_sync import Lockstep
from baton_worker.executor.follower_pool import Crew
from baton_worker.executor.kv_transfer import LedRelay, of_rank
from baton_worker.executor.leader import LedCache, LedHostPages, LedModel
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.kv_transfer.manager import Relay


class Team:
    """A process that has the whole model."""

    ranks: Communicator = Alone()
    """Who has the other parts of the model."""
    lockstep: Lockstep | None = None
    """The workers that take every step together, if this is one of such a group."""
    name = ""
    """What only the workers of such a group are called, while they live."""

    def cache(self, **settings: Any) -> KVCache:
        """Pages; `settings` are the arguments of `KVCache`."""
        return KVCache(**settings)

    def host(self, cache: KVCache, num_pages: int) -> HostPages | None:
        """Pages in host memory, if there are any."""
        return HostPages(cache, num_pages) if num_pages else None

    def relay(self, cache: KVCache, config: Config, name: str) -> Relay | LedRelay:
        """What passes keys on to other workers, and takes theirs over; not started yet."""
        return Relay(cache, config, name)

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


class LedTeam(Team):
    """The leader of a crew, and the crew."""

    def __init__(self, crew: Crew, device: torch.device) -> None:
        self._crew = crew
        self.ranks = crew.join(device)

    def cache(self, **settings: Any) -> KVCache:
        """See `Team`."""
        return LedCache(orders=self._crew.orders, **settings)

    def host(self, cache: KVCache, num_pages: int) -> HostPages | None:
        """See `Team`."""
        return LedHostPages(cache, num_pages, self._crew.orders) if num_pages else None

    def relay(self, cache: KVCache, config: Config, name: str) -> Relay | LedRelay:
        """See `Team`."""
        own = Relay(cache, of_rank(config, 0), name)
        return LedRelay(own, self._crew.orders, self._crew.reports)

    def model(self, model: Any) -> Any:
        """See `Team`."""
        return LedModel(model, self._crew.orders, self.ranks)

    def close(self) -> None:
        """End the followers."""
        self._crew.close()


class Bound(Team):
    """One of several workers that share the experts, each with sequences and pages of its own."""

    def __init__(self, config: Config, device: torch.device) -> None:
        rank, size = config.data_parallel_rank, config.data_parallel
        self._device = device
        self._bond = Bond.tied(config.run_dir, rank, size)
        self.name = self._bond.meeting.name
        group = join(self._bond.meeting, rank, size, device)
        self.lockstep: Lockstep = Lockstep(group, config.all2all_backend, device)

    def model(self, model: Any) -> Any:
        """See `Team`."""
        self._model = LockstepModel(model, self.lockstep)
        return self._model

    def lend(self) -> bool:
        """See `Team`. Waits for all of them."""
        return self._lent(False)

    def leave(self) -> None:
        """See `Team`: all end together."""
        while not self.lockstep.all_over:
            self._lent(True)
        self._bond.loosen()
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
    tensor, data = config.tensor_parallel, config.data_parallel
    if data > 1 and not config.enable_expert_parallel:
        raise SettingsError(
            f"--data-parallel {data}: workers that share no experts need no group. Start them "
            "without it, or add --enable-expert-parallel."
        )
    if data > 1 and tensor > 1:
        raise SettingsError(
            f"--data-parallel {data} with --enable-expert-parallel: each worker of such a group is "
            f"one process. Leave out --tensor-parallel {tensor}."
        )
    if config.enable_expert_parallel and tensor == data == 1:
        raise SettingsError(
            "--enable-expert-parallel: one process has all experts. Add --tensor-parallel or "
            "--data-parallel, or leave it out."
        )
    if (context := config.decode_context_parallel) > 1:
        _check_context(context, tensor, config.page_size)
    if config.data_parallel_rank >= data:
        raise SettingsError(
            f"--data-parallel-rank {config.data_parallel_rank}: ranks are counted from 0, and "
            f"there are {data}."
        )
    ALL2ALL.load(config.all2all_backend)(Alone())


def _check_context(context: int, ranks: int, page_size: int) -> None:
    """Whether ranks come in groups, and each of a group has as many tokens of a page."""
    for count, what in ((ranks, "--tensor-parallel"), (page_size, "--page-size")):
        if count % context:
            raise SettingsError(
                f"--decode-context-parallel {context}: {what} is {count}, which is no multiple of "
                "it. Choose another number, or leave it out."
            )


def assemble(config: Config, path: Path, device: torch.device) -> Team:
    """This process with as many others as the settings want; all of them have met.

    Raises:
        SettingsError: they do not go together.
    """
    check(config)
    if config.data_parallel > 1:
        return Bound(config, device)
    return Team() if config.tensor_parallel == 1 else LedTeam(Crew(config, path), device)
