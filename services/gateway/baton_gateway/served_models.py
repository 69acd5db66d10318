"""The served models by the names of clients; waits briefly for missing servers."""

from __future__ import annotations

import time

from baton.errors import Unavailable
from baton_gateway.catalogue import Catalogue, ModelInfo
from baton_gateway.clients.connection import wait_until
from baton_gateway.clients.fleet_view import FleetView
from baton_gateway.clients.scheduler import SchedulerClient
from baton_gateway.clients.tokenizer import TokenizerClient
from baton_gateway.generation.admission import check_model
from baton_gateway.generation.logprobs import Vocabulary


class ServedModels:
    """Looks models up in the catalogue, and waits for servers that restart."""

    def __init__(
        self,
        fleet: FleetView,
        scheduler: SchedulerClient,
        tokenizers: TokenizerClient,
        timeout: float,
    ) -> None:
        """`timeout`: default number of seconds to wait for a missing server."""
        self.catalogue = Catalogue(lambda: fleet.models, lambda: tokenizers.infos)
        self._fleet, self._scheduler, self._tokenizers = fleet, scheduler, tokenizers
        self._timeout = timeout

    async def get(self, name: str | None, timeout: float | None = None) -> ModelInfo:
        """Return a model by name; None means the only one.

        Raises `Unavailable` if no tokenizer of it joins in time, `NotFound` for an unknown name.
        """
        timeout = self._timeout if timeout is None else timeout
        await wait_until(lambda: check_model(name, self.catalogue) is not None, timeout)
        model_info = check_model(name, self.catalogue)
        if model_info is None:
            raise _no_tokenizer()
        return model_info

    async def with_worker(self, name: str | None, timeout: float) -> ModelInfo:
        """Return a model once a worker of it accepts sequences.

        Raises `Unavailable` after `timeout` seconds, and what `get` raises.
        """
        model = (await self.get(name, timeout)).model
        able = await wait_until(
            lambda: self._fleet.has_ready_worker(time.monotonic(), model), timeout
        )
        if not self._scheduler.pool.ready():
            raise Unavailable("The scheduler is not connected. Try again later.", retry_after=2)
        if not able:
            raise Unavailable(
                "No worker is ready for this model. Try again later.",
                code="no_worker",
                retry_after=2,
            )
        return await self.get(name, timeout)

    async def all(self) -> list[ModelInfo]:
        """Return every model. Raises `Unavailable` if no tokenizer joins in time."""
        if not await wait_until(lambda: bool(self._tokenizers.infos), self._timeout):
            raise _no_tokenizer()
        return self.catalogue.entries()

    async def vocabulary(self, name: str, *, as_ids: bool = False) -> Vocabulary:
        """Return the vocabulary of a model, for log-probabilities; see `Vocabulary`."""
        model_info = await self.get(name)
        pieces = await self._tokenizers.of(model_info.tokenizer).pieces()
        return Vocabulary(pieces, as_ids=as_ids)


def _no_tokenizer() -> Unavailable:
    return Unavailable("No tokenizer is connected. Try again later.", retry_after=2)
