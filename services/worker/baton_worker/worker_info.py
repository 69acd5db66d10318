"""The description of a worker in its Hello."""

from __future__ import annotations

from baton.process.lifecycle import own_process_id
from baton.process.watchdog import pulse
from baton.protocol import WorkerInfo
from baton_worker.engine.engine import Engine
from baton_worker.executor.kv_transfer import LeaderKVTransfer
from baton_worker.kv_transfer.embedding_puller import EmbeddingPuller
from baton_worker.kv_transfer.manager import KVTransferManager


def worker_info(
    engine: Engine,
    model: str,
    role: str,
    kv_transfer: KVTransferManager | LeaderKVTransfer,
    embeddings: EmbeddingPuller | None = None,
) -> WorkerInfo:
    """The description of this worker in its Hello."""
    resolved = engine.resolved
    speculative = resolved.speculative
    return WorkerInfo(
        model=model,
        num_pages=resolved.num_pages,
        page_size=resolved.page_size,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        vocab_size=resolved.vocab_size,
        device=resolved.build.device.type,
        dtype=resolved.dtype_name,
        weight_bytes=resolved.weight_bytes,
        kv_bytes=resolved.kv_bytes,
        eos_ids=resolved.eos_ids,
        pooling=resolved.pooling,
        host_pages=resolved.host_pages,
        windows=resolved.groups.windows,
        role=role,
        kv_address=kv_transfer.address,
        kv_layout=kv_transfer.layout,
        expert_group=engine.team,
        adapters=engine.adapters.infos if engine.adapters else (),
        max_loras=engine.max_loras,
        max_cpu_loras=engine.adapters.capacity if engine.adapters else 0,
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        process=own_process_id(supervised=pulse.attached),
        supervised=pulse.attached,
        encoder_layout=embeddings.layout if embeddings is not None else "",
        weights=engine.version,
        pipeline_stages=resolved.stages,
        alignment=resolved.alignment,
    )
