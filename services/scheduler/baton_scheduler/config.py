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
    """Where the service listens, budgets and bounds."""

    bind: str = setting("", "network", advanced=True)
    """Address for gateways; empty means a socket in the run directory."""
    bind_fleet: str = setting("", "network", advanced=True)
    """Address for workers; empty means a socket in the run directory."""
    max_num_batched_tokens: int = setting(2048, "batching", shared=True, ge=1)
    """Most new tokens in one step of one worker."""
    max_num_encoder_input_tokens: int = setting(0, "batching", ge=0)
    """Most embeddings of images that one step of one worker encodes, since every stream in that
    step waits for them; 0 means as many as tokens. One image is always encoded, of any size."""
    max_itl_ms: float = setting(0.0, "batching", ge=0)
    """Longest time between two tokens of a sequence for which prompts may be the cause: a step with
    rows that decode has only as many tokens of prompts as take no longer by the worker's measured
    steps, a page at least. 0 means as many as --max-num-batched-tokens allows."""
    max_num_queued_reqs: int = setting(4096, "limits", ge=1)
    """Sequences of one model that may wait; more are refused with 503 and Retry-After."""
    max_num_queued_tokens: int = setting(8_000_000, "limits", ge=1)
    """Prompt tokens of one model that may wait."""
    max_tenant_share: float = setting(0.5, "limits", gt=0, le=1)
    """Share of both that one tenant may take up, at least one sequence; more of it is refused with
    429 and Retry-After. 1 lets one tenant fill the queue. It does not bound requests without a
    tenant: those that need no key and name no `user`."""
    plans_in_flight: int = setting(2, "batching", advanced=True, ge=1, le=4)
    """Plans in flight per worker: 2 means one runs while the next waits for it."""
    max_steps_per_plan: int = setting(8, "batching", advanced=True, ge=1, le=64)
    """Most steps that one plan covers while a worker only decodes and no request waits; 1 makes a
    plan for every step. An arrival ends such a plan after the step that runs and the next one."""
    scheduling_policy: Annotated[str, ORDERS] = setting("fair", "batching")
    """Order of service: fcfs by arrival; priority by the lower priority value, which also takes the
    place of a running one with a higher value; fair by the tokens that a tenant was served."""
    tenant_weights: Annotated[str, AfterValidator(_check_weights)] = setting("", "batching")
    """Shares of tenants under the fair order, as "a=1,b=2"; a tenant that is not named has 1."""
    no_worker_seconds: float = setting(300.0, "reliability", advanced=True, gt=0)
    """How long sequences that were taken wait for a worker to come (back) before they are refused
    with 503: some take minutes to load. New requests are refused at once meanwhile."""
    enable_prefix_caching: bool = setting(True, "memory")
    """Keep the pages of what was computed, for sequences that begin in the same way."""
    placement_policy: Annotated[str, PLACEMENTS] = setting("cost", "parallelism")
    """Placement of a sequence: cost by estimated seconds, of which what is cached there, its load,
    its pages and the transfer of KV are part; round-robin in turn; least-loaded by free rows;
    modulo by the request: it belongs to one worker, and waits for it."""
    placement_weights: Annotated[str, AfterValidator(_check_scores)] = setting(
        "", "parallelism", advanced=True
    )
    """Weights of the scores of cost, as "interference=0.5,eviction=0": wait, prefill, interference,
    decode, eviction, transfer."""
    local_prefill_max_tokens: int = setting(512, "parallelism", advanced=True, ge=0)
    """A decode worker may compute a prompt itself if no more than so many of its tokens are new."""
    max_worker_losses: int = setting(2, "reliability", advanced=True, ge=1)
    """A sequence that so many workers died of, from inside, while they ran nothing else is refused
    instead of tried again."""
    worker_hang_seconds: float = setting(5.0, "reliability", advanced=True, shared=True, gt=0)
    """A worker that is busy without progress for this long is taken out and its work restarted."""
    target_ttft_ms: float = setting(2000.0, "observability", gt=0)
    """Time to first token that `baton_scale_desired_workers` aims at."""
    target_itl_ms: float = setting(100.0, "observability", gt=0)
    """Time between two tokens of a sequence that it aims at."""
    event_log: Path | None = setting(None, "observability", advanced=True)
    """Write every event to this file; `baton replay` reproduces each decision from it."""
    event_log_max_bytes: int = setting(1024**3, "observability", advanced=True, ge=1024)
    """Recording stops when the file has this many bytes."""
