"""Startup of every rank of a worker: place, load, size, allocate."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from baton.errors import SettingsError
from baton.logs import logger
from baton.process.segments import Segments, digest
from baton_worker.checkpoint.kept_weights import WeightKeeper, file_stats, key_of
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.load_tables import load_tables
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.config import Config
from baton_worker.device_keeper.kept_memory import KeeperClient
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.distributed.pipeline_parallel import Pipeline
from baton_worker.distributed.step_sync import StepSync
from baton_worker.drafters.draft_head_weights import (
    LAYER_HEADS,
    STATE_HEADS,
    follow_layer_head,
    method_of_head,
)
from baton_worker.engine.engine_config import EngineConfig, resolve
from baton_worker.engine.multimodal import remote_pixels
from baton_worker.graphs.backend_table import BackendTable
from baton_worker.kernels import cpu, triton, unpacked_product
from baton_worker.kernels.cpu.huge_pages import ARENA
from baton_worker.kernels.cpu.shared_pages import SharedPages
from baton_worker.kv_cache.kept_pages import PageKeeper
from baton_worker.layers.build_context import BuildContext, device_of
from baton_worker.models.decoder import Model
from baton_worker.platform.cpu_threads import use_threads
from baton_worker.platform.malloc import keep_freed_memory
from baton_worker.platform.measured_table import MeasuredTable
from baton_worker.speculative import DRAFT_WEIGHTS
from baton_worker.speculative.config import parse
from baton_worker.speculative.proposer import DraftWeights, WeightsContext

log = logger(__name__)


def prepare(config: Config, rank: int = 0) -> BuildContext:
    """Set this process up for the device of its rank.

    Raises:
        SettingsError: there is no such device here, or no such backend or sampler, or a key is
            missing.
    """
    keep_freed_memory()
    cpu.use(config)
    remote_pixels.use(config)
    build = BuildContext.from_config(config, rank)
    use_threads(build.threads)
    if build.device.type == "cpu":
        cpu.prepare()
    else:
        _prepare_gpu(config, build)
    return build


def _measured_folder(config: Config) -> Path:
    """Folder of measured times: beside compiled kernels, since a container may have its models on a
    read-only volume."""
    return (triton.cache_dir() or config.cache_dir) / "measured"


def _prepare_gpu(config: Config, build: BuildContext) -> None:
    device = build.device
    if device.index is not None:
        torch.cuda.set_device(device)
    card = torch.cuda.get_device_name(device)
    folder = _measured_folder(config)
    if config.attention_backend == "auto" and not config.exact:
        build.attention.fastest = BackendTable(folder, card, config.block_size).fastest
    if not config.exact:
        packages = ("torch", "triton")
        unpacked_product.use(MeasuredTable(folder, "unpacked", card, (), packages))
    # Otherwise cuBLAS rounds the parts of a split sum to 16 bits before it adds them.
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False


def load(
    config: Config,
    path: Path,
    build: BuildContext,
    ranks: Communicator,
    lockstep: StepSync | None = None,
    pipeline: Pipeline | None = None,
    patches: tuple[Path, ...] = (),
) -> tuple[LoadedModel, EngineConfig, SharedPages | None]:
    """This rank's part of the model, sizes that are the same on all ranks, and what shares its
    packed weights with other workers.

    Raises:
        ModelError: the model cannot be loaded.
        SettingsError: it does not fit here, or cannot be cut for so many ranks.
    """
    sharing = shared_pages(config, build.device)
    everyone = ranks if pipeline is None else pipeline.ranks
    keeper = weight_keeper(config, path, patches, build.device, everyone.rank)
    files = digest(memoryview(repr(file_stats(path)).encode()))
    loaded = load_weights(config, path, build, ranks, lockstep, pipeline, patches, keeper)
    if sharing is not None:
        ARENA.on_written(None)
        sharing.finish()
    build = replace(build, dtype=loaded.model.dtype)
    pages = page_keeper(config, build, everyone, files)
    resolved = resolve(config, build, loaded, everyone, lockstep, pages=pages)
    return loaded, replace(resolved, checkpoint_files=files), sharing


def load_weights(
    config: Config,
    path: Path,
    build: BuildContext,
    ranks: Communicator,
    lockstep: StepSync | None = None,
    pipeline: Pipeline | None = None,
    patches: tuple[Path, ...] = (),
    keeper: WeightKeeper | None = None,
) -> LoadedModel:
    """This rank's part of the model; `patches` have tensors that replace some of the checkpoint's,
    and a `keeper` has those that were loaded before.

    Raises:
        ModelError: the model cannot be loaded.
        SettingsError: it cannot be cut for so many ranks.
    """
    experts = config.expert_placement_strategy if config.enable_expert_parallel else None
    context_parallel = config.decode_context_parallel_size
    loaded = load_model(
        path,
        build,
        narrow=narrow_dtype(config, build),
        served_length=config.max_model_len or None,
        task=config.task,
        pooling=config.pooling_type,
        router=config.moe_router,
        split=ModelSplit(ranks, lockstep, pipeline, experts, context_parallel),
        dummy=config.load_format == "dummy",
        patches=patches,
        keeper=keeper,
    )
    everyone = ranks if pipeline is None else pipeline.ranks
    drafter = load_drafter(config, loaded, path, build, everyone, patches)
    loaded = replace(loaded, drafter=drafter)
    ARENA.close_all()
    return loaded


def load_drafter(
    config: Config,
    target: LoadedModel,
    path: Path,
    build: BuildContext,
    ranks: Communicator,
    patches: tuple[Path, ...],
) -> DraftWeights | None:
    """Weights of the method of speculation, which the first rank alone has; None: it has none.

    Raises:
        HubError, ModelError, SettingsError: as the method's row in `DRAFT_WEIGHTS`, on all ranks.
    """
    speculative = parse(config.speculative_config)
    if speculative is None or speculative.method not in DRAFT_WEIGHTS:
        return None
    method = speculative.method
    if method == "draft_model" and (head := method_of_head(config, speculative.model)):
        method = head
    if method in LAYER_HEADS:
        _check_layer_head(config, method)
    context = WeightsContext(speculative, config, target, path, build)
    if ranks.rank:
        return _following(method, context)
    if ranks.size > 1:
        dummy = config.load_format == "dummy"
        dtype = target.model.dtype
        tables = partial(load_tables, path, build, dtype, dummy=dummy, patches=patches)
        context = replace(context, tables=cache(tables))
    load = DRAFT_WEIGHTS.load(method)
    weights: DraftWeights = load(context)
    return weights


def _following(method: str, context: WeightsContext) -> DraftWeights | None:
    """A drafter's weights on a rank other than the first."""
    model = context.target.model
    if method in LAYER_HEADS and isinstance(model, Model):
        return follow_layer_head(context)
    if method in STATE_HEADS and isinstance(model, Model):
        model.draft_inputs = ()  # As on the first rank, whose logits all compute.
    return None


def _check_layer_head(config: Config, method: str) -> None:
    """Raise `SettingsError` where the first rank has not all that the head reads."""
    for flag, size, why in (
        ("pipeline", config.pipeline_parallel_size, "the table of tokens is in another stage"),
        ("decode-context", config.decode_context_parallel_size, "the KV of a page is cut"),
    ):
        if size > 1:
            raise SettingsError(
                f"--speculative-config: the head of {method} runs on one rank, and with "
                f"--{flag}-parallel-size {size} {why}. Leave one of the two out."
            )


def narrow_dtype(config: Config, build: BuildContext) -> torch.dtype | None:
    """The dtype of models whose products our kernels compute all; None if it is settled."""
    # No question where it is bfloat16 already, and no kernel for CPUs built on a GPU.
    undecided = config.dtype == "auto" and build.dtype is torch.float32
    return torch.bfloat16 if undecided else None


def shared_pages(config: Config, device: torch.device) -> SharedPages | None:
    """Shares this rank's packed weights with other workers; None if they are not shared."""
    segments = Segments(config.run_dir)
    if not config.share_weights or segments.held_bytes() is None:
        return None
    if device.type != "cpu":
        return None  # See `weight_keeper`.
    sharing = SharedPages(segments, ARENA.full_blocks)
    ARENA.on_written(sharing.while_standby)
    return sharing


def weight_keeper(
    config: Config, path: Path, patches: tuple[Path, ...], device: torch.device, rank: int = 0
) -> WeightKeeper | None:
    """Leases memory of the GPU for a rank's weights; None without a keeper."""
    if config.enable_eplb and device.type != "cpu":
        log.info("weights of this worker go with it: --enable-eplb moves experts while it serves")
        return None
    client = KeeperClient.of(config.run_dir, device) if config.share_weights else None
    if client is None and device.type != "cpu":
        log.info("weights and KV pages of this worker go with it: no keeper of its GPU runs")
    return None if client is None else WeightKeeper(client, key_of(config, path, patches, rank))


def page_keeper(
    config: Config, build: BuildContext, ranks: Communicator, files: bytes
) -> PageKeeper | None:
    """Leases memory of GPUs for the pages of this rank; None without a keeper, for any of
    them. `files` is `EngineConfig.checkpoint_files`."""
    devices = [device_of(config, rank) for rank in range(ranks.size)]
    devices[ranks.rank] = build.device
    keepers = [KeeperClient.of(config.run_dir, device) for device in devices]
    clients = [client for client in keepers if client is not None]
    if not config.keep_kv_cache or len(clients) < ranks.size:
        return None
    of = (config.model, config.quantization, config.block_size, build.dtype, build.codes)
    settings = f"{of} {files.hex()} {build.layout} {ranks.rank} of {ranks.size}"
    name = config.name or "worker"
    return PageKeeper(
        clients, name, settings, ranks.rank, lambda number: numbers(ranks, number, build.device)
    )


def page_settings(loaded: LoadedModel, resolved: EngineConfig) -> dict[str, Any]:
    """The arguments of this rank's `KVCache`."""
    build = resolved.build
    return {
        "spec": loaded.kv_spec,
        "num_pages": resolved.num_pages,
        "page_size": resolved.page_size,
        "dtype": build.dtype,
        "device": build.device,
        "codes": build.codes,
        "layout": build.layout,
        "groups": resolved.groups,
        "spare": resolved.spare_pages,
    }
