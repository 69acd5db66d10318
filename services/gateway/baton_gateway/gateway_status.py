"""State of this gateway: whether it accepts requests, whether it is healthy."""

from __future__ import annotations

import time
from typing import Any

from baton import __version__
from baton.errors import Unavailable
from baton_gateway.catalogue import Catalogue
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.fleet_view import FleetView, snapshot
from baton_gateway.clients.scheduler import SchedulerClient
from baton_gateway.clients.tokenizer import TokenizerClient
from baton_gateway.config import Config
from baton_gateway.http.errors import GatewayPartitioned


class GatewayStatus:
    """State of this gateway, judged by its connections and the scheduler's reports."""

    def __init__(
        self,
        name: str,
        config: Config,
        fleet: FleetView,
        scheduler: SchedulerClient,
        tokenizers: TokenizerClient,
        catalogue: Catalogue,
    ) -> None:
        self.draining = False
        """True while this process drains: new requests are refused."""
        self.num_requests = 0
        """Requests in flight."""
        self._name, self._config, self._fleet = name, config, fleet
        self._scheduler, self._tokenizers, self._catalogue = scheduler, tokenizers, catalogue

    @property
    def partitioned(self) -> bool:
        """True if the scheduler is silent here but may be reachable from gateways on the same
        port."""
        return self._config.shared_port and self._scheduler.pool.silent()

    def check(self) -> None:
        """Raise `Unavailable` if no request may start now."""
        if self.draining:
            raise Unavailable(
                "This server is shutting down. Send the request again.",
                code="shutting_down",
                retry_after=1,
            )
        if self.partitioned:
            raise GatewayPartitioned
        if self.num_requests > self._config.max_concurrent_requests:
            raise Unavailable("Too many requests are in flight. Try again later.", retry_after=1)

    def unhealthy_reasons(self) -> list[str]:
        """Return the reasons why this gateway cannot serve; empty when it can."""
        if not self._scheduler.pool.ready() or self.partitioned:
            reasons = ["the scheduler does not answer"]
        else:
            reasons = self._fleet.unhealthy_reasons(time.monotonic())
        reasons += self._without_tokenizer()
        if self.draining:
            reasons.append("this gateway is draining")
        return reasons

    def _without_tokenizer(self) -> list[str]:
        """The reason why no model can be served; one available model is enough."""
        if not self._tokenizers.infos:
            return ["no tokenizer answers"]
        names = [model.name for model in self._fleet.models]
        if not names or any(map(self._catalogue.get, names)):
            return []
        return [f"no tokenizer answers for {', '.join(names)}"]

    def snapshot(self, pools: dict[str, Pool]) -> dict[str, Any]:
        """Return the system as a JSON object; see `baton_gateway.clients.fleet_view.snapshot`."""
        me = {
            "service": "gateway",
            "name": self._name,
            "state": "draining" if self.draining else "ready",
            "detail": f"version {__version__}, {self.num_requests} requests",
        }
        names = self._catalogue.names
        served = next(iter(self._fleet.models), None)
        return {
            "model": served.name if served else names[0] if names else "",
            "models": names,
            "max_model_len": served.max_model_len if served else 0,
            "vocab_size": served.vocab_size if served else 0,
            "task": served.pooling.task if served and served.pooling else "generate",
            **snapshot(self._fleet, pools, me),
        }
