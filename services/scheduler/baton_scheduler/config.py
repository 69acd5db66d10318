"""Settings of the scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from baton.settings import Settings, setting
from baton_scheduler.placement.policies import PLACEMENTS, parse_scores
from baton_scheduler.queueing.policies import ORDERS, parse_weights


def _check_weights(value: str) -> str:
    parse_weights(value)
    return value


def _check_scores(value: str) -> str:
    parse_scores(value)
    return value


class Config(Settings, prefix="scheduler"):
    """Addresses, token budgets and queue limits."""

    bind: str = setting("", "network", advanced=True)
    """Address for gateways; empty means a socket in the run directory."""
    bind_fleet: str = setting("", "network", advanced=True)
    """Address for workers; empty means a socket in the run directory."""
    max_num_batched_tokens: int = setting(2048, "batching", shared=True, ge=1)
    """Maximum new tokens in one step of one worker. A worker may have a lower maximum, such as 512
    by default on a CPU."""
    max_num_encoder_input_tokens: int = setting(0, "batching", ge=0)
    """Maximum media embeddings that one step of one worker encodes: every row of that step waits
    for them. 0 means --max-num-batched-tokens. A step always encodes at least one image, of any
    size."""
    max_itl_ms: float = setting(0.0, "batching", ge=0)
    """Maximum milliseconds of a step that mixes prompts with decode rows: it takes only as many
    prompt tokens as fit, by the measured times of the worker, and at least one page. 0 means 250
    ms, or eight steps of the decode rows alone if these take longer; a large number leaves only
    --max-num-batched-tokens."""
    max_num_queued_reqs: int = setting(4096, "limits", ge=1)
    """Sequences of one model that may wait; more are refused with 503 and Retry-After."""
    max_num_queued_tokens: int = setting(8_000_000, "limits", ge=1)
    """Prompt tokens of one model that may wait; more are refused with 503 and Retry-After."""
    max_tenant_share: float = setting(0.5, "limits", gt=0, le=1)
    """Share of --max-num-queued-reqs and --max-num-queued-tokens that one tenant may use, at least
    one sequence; more is refused with 429 and Retry-After. 1 lets one tenant fill the queue.
    Requests without a tenant (without a key and without `user`) are not limited."""
    plans_in_flight: int = setting(2, "batching", advanced=True, ge=1, le=4)
    """Plans in flight per worker: 2 means one runs while the next waits for it."""
    max_steps_per_plan: int = setting(8, "batching", advanced=True, ge=1, le=64)
    """Maximum steps of one plan while a worker only decodes and no request waits; 1 makes a plan
    for every step. An arrival ends such a plan after the running step and the next one."""
    scheduling_policy: Annotated[str, ORDERS] = setting("fair", "batching")
    """Order of service: fcfs by arrival; priority by the lower priority value, which also preempts
    a running sequence with a higher value; fair by the tokens that each tenant was served."""
    tenant_weights: Annotated[str, AfterValidator(_check_weights)] = setting("", "batching")
    """Shares of tenants under the scheduling policy fair, as "a=1,b=2"; a tenant that is not named
    has 1."""
    no_worker_seconds: float = setting(300.0, "reliability", advanced=True, gt=0)
    """How long accepted sequences wait for a worker to join or return before they fail with 503.
    Some workers take minutes to load. New requests are refused at once while no worker is
    present."""
    enable_prefix_caching: bool = setting(True, "memory")
    """Keep the KV pages of computed tokens for sequences with the same prefix."""
    placement_policy: Annotated[str, PLACEMENTS] = setting("cost", "parallelism")
    """Choice of the worker of a sequence: cost by estimated seconds (cached prefix, load, pages and
    KV transfer); round-robin in turn; least-loaded by free rows; modulo by request id: each request
    is assigned to one worker and waits for it."""
    placement_weights: Annotated[str, AfterValidator(_check_scores)] = setting(
        "", "parallelism", advanced=True
    )
    """Weights of the scores of the placement policy cost, as "interference=0.5,eviction=0": wait,
    prefill, interference, decode, eviction, transfer."""
    local_prefill_max_tokens: int = setting(512, "parallelism", advanced=True, ge=0)
    """A decode worker may compute a prompt itself if at most this many of its tokens are new."""
    max_worker_losses: int = setting(2, "reliability", advanced=True, ge=1)
    """Number of worker crashes after which a sequence that ran alone in each is refused instead of
    retried."""
    worker_hang_seconds: float = setting(5.0, "reliability", advanced=True, shared=True, gt=0)
    """A worker that is busy without progress for this long is removed and its work restarted."""
    target_ttft_ms: float = setting(2000.0, "observability", gt=0)
    """Target time to first token of the metric `baton_scale_desired_workers`."""
    target_itl_ms: float = setting(100.0, "observability", gt=0)
    """Target time between two tokens of a sequence of the metric `baton_scale_desired_workers`."""
    event_log: Path | None = setting(None, "observability", advanced=True)
    """Write every event to this file; `baton replay` reproduces each decision from it."""
    event_log_max_bytes: int = setting(1024**3, "observability", advanced=True, ge=1024)
    """Recording stops when the file has this many bytes."""
