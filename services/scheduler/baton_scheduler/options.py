"""The settings that decisions depend on, as plain data that a recording can carry."""

from __future__ import annotations

from typing import Self

import msgspec

from baton_scheduler.config import Config


class Limits(msgspec.Struct, frozen=True):
    """Bounds of the state machine. Two machines with equal limits and events decide alike."""

    max_batch_tokens: int = 2048
    max_waiting: int = 4096
    max_waiting_tokens: int = 8_000_000
    depth: int = 2
    order: str = "fcfs"
    no_worker_seconds: float = 300.0
    max_losses: int = 2
    prefix_caching: bool = True
    tenant_weights: str = ""
    max_tenant_share: float = 1.0
    max_steps: int = 8
    local_prefill: int = 512
    placement: str = "cost"
    placement_weights: str = ""

    @classmethod
    def of(cls, config: Config) -> Self:
        """The limits that the settings ask for."""
        return cls(**{name: getattr(config, name) for name in cls.__struct_fields__})
