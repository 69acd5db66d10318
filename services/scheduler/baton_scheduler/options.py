"""Settings that decisions depend on, as plain data that a recording can hold."""

from __future__ import annotations

from typing import Self

import msgspec

from baton_scheduler.config import Config


class SchedulerOptions(msgspec.Struct, frozen=True):
    """Options of the state machine. Equal options and events give equal decisions."""

    max_num_batched_tokens: int = 2048
    max_num_queued_reqs: int = 4096
    max_num_queued_tokens: int = 8_000_000
    plans_in_flight: int = 2
    scheduling_policy: str = "fair"
    no_worker_seconds: float = 300.0
    max_worker_losses: int = 2
    enable_prefix_caching: bool = True
    tenant_weights: str = ""
    max_tenant_share: float = 0.5
    max_steps_per_plan: int = 8
    local_prefill_max_tokens: int = 512
    max_num_encoder_input_tokens: int = 0
    placement_policy: str = "cost"
    placement_weights: str = ""
    max_itl_ms: float = 0.0

    @classmethod
    def of(cls, config: Config) -> Self:
        """Options from the settings."""
        return cls(**{name: getattr(config, name) for name in cls.__struct_fields__})
