"""Checkpoint to model: stream every tensor straight into its parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import torch

from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.checkpoint_context import checkpoint_context, rounding
from baton_worker.checkpoint.dummy import random_weights
from baton_worker.checkpoint.empty_model import empty_model, meta_layers
from baton_worker.checkpoint.fill import fill
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder
from baton_worker.checkpoint.kept_weights import KeptWeights, WeightKeeper
from baton_worker.checkpoint.loaded_model import LoadedModel, held_bytes
from baton_worker.checkpoint.rank_share import ModelSplit, RankShare, rank_share
from baton_worker.checkpoint.task import is_listed, served_task
from baton_worker.checkpoint.unlisted_model import check_unlisted, load_unlisted
from baton_worker.checkpoint.unstack import Stored
from baton_worker.distributed.eplb.balanced_experts import BalancedExperts
from baton_worker.distributed.eplb.balancer import ExpertBalancer, balance
from baton_worker.distributed.expert_parallel import ExchangedExperts, exchange
from baton_worker.distributed.pipeline_parallel import connect
from baton_worker.distributed.tensor_parallel import shard_modules
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from baton_worker.models.encoder import EncoderModel
from baton_worker.models.resolve import readable_config
from baton_worker.pooling.resolve import Task
from baton_worker.quantization.blocks import as_stored
from baton_worker.quantization.compressed_tensors import rounds_inputs
from baton_worker.quantization.methods import method
from baton_worker.spec import Decoder
from baton_worker.spec.hf_config import has_kv_scales


def load_model(
    path: Path,
    context: BuildContext,
    *,
    narrow: torch.dtype | None = None,
    served_length: int | None = None,
    task: Task = "auto",
    pooling: str = "auto",
    router: str = "top_k",
    split: ModelSplit | None = None,
    dummy: bool = False,
    patches: Sequence[Path] = (),
    keeper: WeightKeeper | None = None,
) -> LoadedModel:
    """Load a checkpoint folder (config.json and safetensors) or a GGUF file.

    All ranks load at the same time, and each gets its share.

    Args:
        path: folder or file.
        context: device, dtype and kernels. Pages of codes get the checkpoint's KV scales, if any.
        narrow: dtype that replaces the one of a text model that `is_expanded`.
        served_length: maximum sequence length, see `resolve`.
        task: see `served_task`.
        pooling: see `served_task`.
        router: key of `layers.moe.routers.ROUTERS`, for the experts of all layers.
        split: over the processes of a worker or a group of workers; None: one has all of it.
        dummy: make random weights; the folder needs a config.json only.
        patches: safetensors files whose tensors replace those of the checkpoint.
        keeper: leases memory that outlives this worker for the weights of this rank. Weights that
            are already there are not read again.

    Raises:
        ModelError: the path holds neither, the architecture is unknown, or the tensors do
            not match the architecture.
        SettingsError: the model cannot be split over these ranks.
    """
    split = split or ModelSplit()
    checkpoint = open_checkpoint(path, patches)
    config = checkpoint.config
    context = rounding(context, config)
    _check_inputs(context, config)
    if dummy:
        _check_dummy(path, config)
    if not is_listed(config):
        check_unlisted(config, task, context, split.is_parallel, patched=bool(patches))
        return load_unlisted(path, checkpoint, context)
    full = served_task(config, path, task, pooling, served_length)
    if isinstance(checkpoint, SafetensorsFolder) and not dummy:
        checkpoint.check_files()
    full = replace(full, spec=full.spec.with_router(router))
    context = checkpoint_context(context, config, full.spec, narrow, split.ranks)
    with readable_config(config.architectures[0], config):
        share = rank_share(full, context, split)
        model, kept = empty_model(share.task, context, keeper)
    _connect(model, share, split, context.device)
    if kept is None or not kept.attach():
        stored = _stored(checkpoint, share, context, dummy)
        kept = _filled(model, stored, as_stored(full.spec, config), context, share, kept)
    balancer = None if split.lockstep is None else balance(model, split.lockstep)
    return _loaded(model, checkpoint, share, kept, balancer)


def _check_inputs(context: BuildContext, config: SimpleNamespace) -> None:
    if context.int8_inputs and not rounds_inputs(config):
        raise SettingsError(
            "--int8-activations: this checkpoint does not say how inputs are rounded to 8-bit "
            "integers, as w8a8 of compressed-tensors does. Serve it without the setting."
        )


def _check_dummy(path: Path, config: SimpleNamespace) -> None:
    if not path.is_dir() or not is_listed(config):
        raise ModelError(
            "--load-format dummy needs a folder with the config.json of an architecture that has a "
            "spec here."
        )
    if (named := method(config)) is not None:
        raise ModelError(
            f"--load-format dummy makes floats, and config.json names the weights of {named}. "
            "Remove its quantization_config, and round with --quantization if you want to."
        )


def _connect(
    model: Model | EncoderModel,
    share: RankShare,
    split: ModelSplit,
    device: torch.device,
) -> None:
    """Insert the collectives between ranks: of tensor-parallel shards, or of expert-parallel
    tokens; then those between stages."""
    if not isinstance(model, Model):
        return
    full, lockstep = share.full.spec, split.lockstep
    if share.parts is not None and lockstep is not None:
        kind = ExchangedExperts if lockstep.eplb is None else BalancedExperts
        exchange(model, full.hidden, lockstep, kind)
    elif share.parts is not None:
        shard_modules(model, full.vocab, split.ranks)
    if split.pipeline is not None:
        connect(model, split.pipeline, device)


def _stored(
    checkpoint: Checkpoint, share: RankShare, context: BuildContext, dummy: bool
) -> Iterator[tuple[str, Stored]]:
    """The tensors of the checkpoint, or random ones in their place."""
    if dummy:
        return random_weights(meta_layers(share.full, context), context.dtype, context.device)
    return _weights(checkpoint, share, context.scaled)


def _weights(
    checkpoint: Checkpoint, share: RankShare, scaled: bool
) -> Iterator[tuple[str, Stored]]:
    """The checkpoint's weights without unused KV scales, and those of the extra files."""
    unread = (".k_scale", ".v_scale") if has_kv_scales(checkpoint.config) and not scaled else ()
    stored = checkpoint.tensors(share.full.spec)
    read = (pair for pair in stored if not pair[0].endswith(unread))
    task = share.task
    return chain(read, task.files.tensors() if task.files and task.recipe else ())


def _filled(
    model: Model | EncoderModel,
    stored: Iterator[tuple[str, Stored]],
    layout: Decoder,
    context: BuildContext,
    share: RankShare,
    kept: KeptWeights | None,
) -> KeptWeights | None:
    """Fill the model; returns the memory of its weights if that outlives the worker."""
    process = (lambda layer: None) if kept is None else kept.keep
    fill(
        model,
        stored,
        layout,
        context.quantization,
        share.parts,
        elsewhere=share.elsewhere,
        processed=process,
    )
    return kept if kept is not None and kept.seal() else None


def _loaded(
    model: Model | EncoderModel,
    checkpoint: Checkpoint,
    share: RankShare,
    kept: KeptWeights | None,
    balancer: ExpertBalancer | None,
) -> LoadedModel:
    return LoadedModel(
        model=model.eval(),
        spec=share.task.spec,
        config=checkpoint.config,
        max_length=share.task.max_length,
        vocab_size=share.full.spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=held_bytes(model),
        recipe=share.task.recipe,
        generates=share.task.generates,
        parts=share.parts,
        kept=kept,
        all_stages=share.all_stages,
        balancer=balancer,
    )
