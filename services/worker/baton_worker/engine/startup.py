"""What every rank of a worker does before the first step: place, load, size, allocate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from baton_worker.attention import prefer
from baton_worker.checkpoint.load import LoadedModel, load_model
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.step_sync import StepSync
from baton_worker.engine.engine_config import (
    DeviceConfig,
    EngineConfig,
    resolve,
    resolve_device,
)
from baton_worker.kernels import cpu, moe
from baton_worker.platform.malloc import keep_freed_memory
from baton_worker.sampling import backends


def prepare(config: Config, rank: int = 0) -> DeviceConfig:
    """Set this process up for the device of its rank.

    Raises:
        SettingsError: there is no such device here, or no such backend or sampler.
    """
    keep_freed_memory()
    cpu.use(config)
    prefer(config.attention_backend)
    moe.prefer(config.moe_backend)
    placement = resolve_device(config, rank)
    backends.prefer(config.sampling_backend, placement.device)
    torch.set_num_threads(placement.threads)
    if placement.device.type == "cpu":
        cpu.prepare()
    elif placement.device.index is not None:
        torch.cuda.set_device(placement.device)
    return placement


def load(
    config: Config,
    path: Path,
    placement: DeviceConfig,
    ranks: Communicator,
    lockstep: StepSync | None = None,
) -> tuple[LoadedModel, EngineConfig]:
    """This rank's part of the model, and sizes that are the same on all ranks.

    Raises:
        ModelError: the model cannot be loaded.
        SettingsError: it does not fit here, or cannot be cut for so many ranks.
    """
    # Where it is bfloat16 already nobody need ask, and on a GPU no kernel for CPUs be built.
    undecided = config.dtype == "auto" and placement.dtype is torch.float32
    loaded = load_model(
        path,
        device=placement.device,
        dtype=placement.dtype,
        narrow=torch.bfloat16 if undecided else None,
        served_length=config.max_model_len or None,
        task=config.task,
        pooling=config.pooling_type,
        router=config.moe_router,
        quantize=config.quantization,
        codes=placement.codes,
        layout=placement.layout,
        ranks=ranks,
        experts=config.expert_placement_strategy if config.enable_expert_parallel else None,
        lockstep=lockstep,
        context=config.decode_context_parallel_size,
    )
    placement = replace(placement, dtype=loaded.model.dtype)
    return loaded, resolve(config, placement, loaded, ranks)


def page_settings(loaded: LoadedModel, resolved: EngineConfig) -> dict[str, Any]:
    """The arguments of this rank's `KVCache`."""
    placement = resolved.placement
    return {
        "spec": loaded.spec,
        "num_pages": resolved.num_pages,
        "page_size": resolved.page_size,
        "dtype": placement.dtype,
        "device": placement.device,
        "codes": placement.codes,
        "layout": placement.layout,
        "groups": resolved.groups,
        "spare": resolved.spare_pages,
    }
