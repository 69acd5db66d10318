"""Statistics of the state for gateways and dashboards."""

from __future__ import annotations

from collections.abc import Iterable

from baton.protocol import ModelStats, Stats, WorkerInfo, WorkerStats
from baton_scheduler.observability.autoscaling import Targets, roles
from baton_scheduler.state import State
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker


def stats(
    state: State,
    *,
    incarnation: int,
    uptime: float,
    dropped_frames: int,
    hung: Iterable[tuple[str, WorkerInfo]] = (),
    targets: Targets | None = None,
) -> Stats:
    """A snapshot. `hung` are workers that were removed but still send heartbeats."""
    counters = state.counters
    return Stats(
        incarnation=incarnation,
        waiting=len(state.queue),
        waiting_tokens=state.queue.num_tokens,
        running=state.num_running,
        preemptions=counters.preemptions,
        finished=counters.finished,
        tokens=counters.tokens,
        tokens_per_second=state.sampled.rate,
        uptime=uptime,
        workers=(
            *(_present(w, state) for w in state.fleet),
            *map(_encoder, state.fleet.encoders.values()),
            *(_hung(name, info) for name, info in hung),
        ),
        worker_losses=counters.lost_workers,
        dropped_frames=dropped_frames,
        stale_results=counters.stale_results,
        prompt_tokens=counters.prompt_tokens,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        handoffs=counters.handoffs,
        failed_transfers=counters.failed_transfers,
        transferred_tokens=state.handoffs.moved_tokens,
        transfers=state.handoffs.transfer_totals.stats(),
        roles=roles(state, targets or Targets()),
        media_encoded=state.encodings.counters.encoded,
        media_encoded_locally=counters.media_encoded_locally,
        media_shared=state.encodings.counters.shared,
        media_retried=state.encodings.counters.retried,
        media_pulled=state.encodings.counters.pulled,
        media_pulls_failed=state.encodings.counters.failed_pulls,
        num_drafts=counters.num_drafts,
        num_draft_tokens=counters.num_draft_tokens,
        num_accepted_tokens_per_pos=tuple(counters.num_accepted_tokens_per_pos),
        models=tuple(_model(name, state) for name in state.fleet.models),
    )


def _model(name: str, state: State) -> ModelStats:
    """Properties are those of its first worker; the maximum length is the smallest of all."""
    fleet = state.fleet.serving(name)
    info = next(iter(fleet)).info
    return ModelStats(
        name=name,
        max_model_len=fleet.max_model_len,
        vocab_size=info.vocab_size,
        eos_ids=info.eos_ids,
        pooling=info.pooling,
        adapters=state.adapters.listed(name),
        paused=name in state.paused,
        asleep=all(worker.info.asleep for worker in fleet),
        weight_version=state.weights.get(name, info.weights).label,
        alignment=all(worker.info.alignment for worker in fleet),
    )


def _present(worker: Worker, state: State) -> WorkerStats:
    info = worker.info
    per_step, per_token = worker.step_cost.line
    balance = worker.expert_balance
    return WorkerStats(
        name=worker.name,
        role=info.role,
        state="draining" if worker.draining else "asleep" if info.asleep else "ready",
        device=info.device,
        dtype=info.dtype,
        running=len(worker.batch),
        pages_total=worker.pool.total,
        pages_free=worker.pool.num_free,
        steps=worker.steps,
        step_ms=worker.step_ms,
        tokens_per_second=worker.tokens.rate,
        weight_bytes=info.weight_bytes,
        kv_bytes=info.kv_bytes,
        pages_cached=worker.pool.num_cached,
        gap_ms=worker.gap_ms,
        pull_rate=state.placement.links.rate(worker.name),
        rank=state.placement.rank(worker, state.fleet),
        model=info.model,
        seconds_per_step=per_step,
        seconds_per_token=per_token,
        tokens_per_step=worker.budget,
        expert_balancedness=balance.balancedness if balance else 0.0,
        expert_rearrangements=balance.rearrangements if balance else 0,
    )


def _encoder(worker: EncodeWorker) -> WorkerStats:
    info = worker.info
    per_item, per_token = worker.encode_cost.line
    return WorkerStats(
        name=worker.name,
        role=info.role,
        state="draining" if worker.draining else "ready",
        device=info.device,
        dtype=info.dtype,
        running=len(worker.in_flight),
        pages_total=0,
        pages_free=0,
        steps=worker.num_encoded,
        step_ms=1000 * worker.step_seconds,
        tokens_per_second=worker.tokens.rate,
        weight_bytes=info.weight_bytes,
        kv_bytes=0,
        model=info.model,
        seconds_per_step=per_item,
        seconds_per_token=per_token,
    )


def _hung(name: str, info: WorkerInfo) -> WorkerStats:
    return WorkerStats(
        name=name,
        role=info.role,
        state="hung",
        device=info.device,
        dtype=info.dtype,
        running=0,
        pages_total=info.num_pages,
        pages_free=0,
        steps=0,
        step_ms=0.0,
        tokens_per_second=0.0,
        weight_bytes=info.weight_bytes,
        kv_bytes=info.kv_bytes,
        model=info.model,
    )
