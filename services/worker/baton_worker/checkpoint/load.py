"""Checkpoint to model: stream every tensor straight into its parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import torch

from baton.errors import ModelError, SettingsError
from baton.logs import logger
from baton_worker.checkpoint.bf16_expansion import is_expanded
from baton_worker.checkpoint.dummy import random_weights
from baton_worker.checkpoint.fill import fill
from baton_worker.checkpoint.kept_weights import KeptWeights, WeightKeeper, build_kept
from baton_worker.checkpoint.mistral import MistralFolder
from baton_worker.checkpoint.patched_checkpoint import PatchedCheckpoint
from baton_worker.checkpoint.quantized_loading import kinds
from baton_worker.checkpoint.rank_sharded import RankShardedFolder
from baton_worker.checkpoint.safetensors import SafetensorsFolder
from baton_worker.checkpoint.task import ServedTask, is_listed, served_task
from baton_worker.checkpoint.unstack import Stored
from baton_worker.distributed.communicator import Communicator, SingleRank
from baton_worker.distributed.eplb.balanced_experts import BalancedExperts
from baton_worker.distributed.eplb.balancer import ExpertBalancer, balance
from baton_worker.distributed.expert_parallel import ExchangedExperts, exchange
from baton_worker.distributed.pipeline_parallel import Pipeline, connect, stage_spec
from baton_worker.distributed.shard_spec import Shard, deal, shard_spec
from baton_worker.distributed.shard_weights import Parts
from baton_worker.distributed.step_sync import StepSync
from baton_worker.distributed.tensor_parallel import shard_modules
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.models import transformers_backend
from baton_worker.models.build import build
from baton_worker.models.decoder import Model
from baton_worker.models.dual_encoder import build_dual_encoder
from baton_worker.models.encoder import EncoderModel, build_encoder
from baton_worker.models.resolve import readable_config, unsupported
from baton_worker.models.transformers_backend import TransformersModel
from baton_worker.models.vision.build import build_tower
from baton_worker.pooling.pooler import Pooler
from baton_worker.pooling.recipe import PoolingRecipe
from baton_worker.pooling.resolve import Task
from baton_worker.quantization.blocks import as_stored, scheme
from baton_worker.quantization.compressed_tensors import rounds_inputs
from baton_worker.quantization.methods import ROUNDS, method
from baton_worker.spec import (
    Decoder,
    DualEncoder,
    Encoder,
    Ffn,
    ModalityMoe,
    Moe,
    ShortcutMoe,
    Stage,
)
from baton_worker.spec.hf_config import has_kv_scales
from baton_worker.speculative.proposer import DraftWeights

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model and its properties."""

    model: Model | EncoderModel | TransformersModel
    spec: Decoder
    """The spec of this rank's shard, of its stage where there are several."""
    config: SimpleNamespace
    max_length: int
    """Context length of the checkpoint in tokens, prompt and completion together."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weight_bytes: int = 0
    """Bytes of all weights as held in memory; a tied head counts once."""
    recipe: PoolingRecipe | None = None
    """The recipe of `model.pooler`; None if the model only generates."""
    generates: bool = True
    parts: Parts | None = None
    """The full model's layers and this rank's place among them, on several ranks."""
    drafter: DraftWeights | None = None
    """The drafter, if it has weights of its own."""
    kept: KeptWeights | None = None
    """The memory of its weights, where it outlives the worker."""
    all_stages: Decoder | None = None
    """The spec of this rank's shard of all stages, where there are several."""
    balancer: ExpertBalancer | None = None
    """Moves its experts between workers, with expert load balancing."""

    @property
    def unstaged(self) -> Decoder:
        """The spec of this rank's shard, with the layers of all stages."""
        return self.spec if self.all_stages is None else self.all_stages

    @property
    def kv_spec(self) -> Decoder:
        """The layers whose KV is in a page: its own, then those of a draft head."""
        if self.drafter is None or not self.drafter.layers:
            return self.spec
        return replace(self.spec, layers=self.spec.layers + self.drafter.layers)


class Checkpoint(Protocol):
    """A container of weights in any file format."""

    config: SimpleNamespace
    eos_token_ids: tuple[int, ...]

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Stored]]:
        """Every tensor once, under its Hugging Face name; quantised as it is stored."""
        ...


def load_model(
    path: Path,
    context: BuildContext,
    *,
    narrow: torch.dtype | None = None,
    served_length: int | None = None,
    task: Task = "auto",
    pooling: str = "auto",
    router: str = "top_k",
    ranks: Communicator | None = None,
    experts: str | None = None,
    lockstep: StepSync | None = None,
    pipeline: Pipeline | None = None,
    context_parallel: int = 1,
    dummy: bool = False,
    patches: Sequence[Path] = (),
    keeper: WeightKeeper | None = None,
) -> LoadedModel:
    """Load a checkpoint folder (config.json and safetensors) or a GGUF file.

    `narrow`, if given, replaces the dtype of a text model that `is_expanded`. `served_length` is
    the maximum sequence length, see `resolve`; `task` and `pooling` are those of `served_task`;
    `router` is a key of `layers.moe.routers.ROUTERS`, for all experts. Pages of codes have the
    checkpoint's KV scales, if any. All `ranks` load at the same time, and each gets its shard. With
    `experts`, a key of `spec.expert_map.PLACEMENTS`, each expert is on one rank, or on one of
    the data-parallel workers in `lockstep`. In a `pipeline` the ranks are those of one stage, which
    has neighbouring layers. `context_parallel` neighbouring ranks with the same KV heads split the
    tokens of the cache. A `dummy` folder needs a config.json only: its weights are random. Tensors
    of `patches`, safetensors files, take the place of the checkpoint's. With a `keeper` the weights
    of this rank lie in memory that outlives this worker; those that are there are not read again.

    Raises:
        ModelError: the path holds neither, the architecture is unknown, or the tensors do
            not match the architecture.
        SettingsError: the model cannot be split over these ranks.
    """
    split = _Split(ranks or SingleRank(), lockstep, pipeline, experts, context_parallel)
    checkpoint = _opened(path, patches)
    config = checkpoint.config
    context = rounding(context, config)
    _check_inputs(context, config)
    if dummy:
        _check_dummy(path, config)
    if not is_listed(config):
        _check_unlisted(config, task, context, split.is_parallel, patched=bool(patches))
        return _by_transformers(path, checkpoint, context)
    full = served_task(config, path, task, pooling, served_length)
    if isinstance(checkpoint, SafetensorsFolder) and not dummy:
        checkpoint.check_files()
    full = replace(full, spec=routed(full.spec, router))
    site = _site(context, config, full.spec, narrow, split.ranks)
    with readable_config(config.architectures[0], config):
        share = _share(full, site, split)
        model, kept = _allocated(share.task, site, keeper)
    _connect(model, full.spec, share, split, context.device)
    if kept is None or not kept.attach():
        stored = _stored(checkpoint, full, share.task, site, dummy)
        kept = _filled(model, stored, as_stored(full.spec, config), context, share, kept)
    return LoadedModel(
        model=model.eval(),
        spec=share.task.spec,
        config=config,
        max_length=share.task.max_length,
        vocab_size=full.spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=_held_bytes(model),
        recipe=share.task.recipe,
        generates=share.task.generates,
        parts=share.parts,
        kept=kept,
        all_stages=share.all_stages,
        balancer=None if lockstep is None else balance(model, lockstep),
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """How the processes of a worker, or of a group of workers, split a model: see `load_model`."""

    ranks: Communicator
    lockstep: StepSync | None
    pipeline: Pipeline | None
    experts: str | None
    context_parallel: int

    @property
    def is_parallel(self) -> bool:
        """Whether several processes have parts of the model."""
        return self.ranks.size > 1 or self.lockstep is not None or self.pipeline is not None


@dataclass(frozen=True, slots=True)
class _Share:
    """This rank's share of a model."""

    task: ServedTask
    parts: Parts | None
    """Its place in the full model; None if no rank shares its layers."""
    all_stages: Decoder | None = None
    """See `LoadedModel`."""
    elsewhere: Sequence[Layer] = ()
    """The layers of the full model, where other stages have some of them."""


def _opened(path: Path, patches: Sequence[Path]) -> Checkpoint:
    checkpoint = open_checkpoint(path)
    return PatchedCheckpoint(checkpoint, patches) if patches else checkpoint


def _site(
    context: BuildContext,
    config: SimpleNamespace,
    spec: Decoder,
    narrow: torch.dtype | None,
    ranks: Communicator,
) -> BuildContext:
    """The context with what follows from the checkpoint."""
    dtype = narrow if narrow is not None and is_expanded(spec) else context.dtype
    scaled = has_kv_scales(config) and _has_scales(context.codes)
    return replace(context, dtype=dtype, scaled=scaled, peers=ranks, staging=staging(config))


def _share(full: ServedTask, site: BuildContext, split: _Split) -> _Share:
    task, parts = _shard(full, site, split)
    if split.pipeline is None:
        return _Share(task, parts)
    stage, elsewhere = split.pipeline.layers_of(full.spec), meta_layers(full, site)
    staged, parts = _staged(full, task, parts, stage, site)
    return _Share(staged, parts, task.spec, elsewhere)


def _shard(full: ServedTask, site: BuildContext, split: _Split) -> tuple[ServedTask, Parts | None]:
    """This rank's shard of all layers, and its place in the full model; that model if no rank
    shares its layers."""
    lockstep = split.lockstep
    peers, divide = (split.ranks, shard_spec) if lockstep is None else (lockstep.ranks, deal)
    if peers.size == 1:
        return full, None
    eplb = None if lockstep is None else lockstep.eplb
    redundant = None if eplb is None else eplb.num_redundant_experts
    shard = Shard(peers.rank, peers.size, split.experts, split.context_parallel, redundant)
    task, parts = _cut(full, shard, divide, site)
    return task, replace(parts, ranks=peers)


def _staged(
    full: ServedTask, task: ServedTask, parts: Parts | None, stage: Stage, site: BuildContext
) -> tuple[ServedTask, Parts | None]:
    """The layers of one stage of a pipeline, and their place in the full model."""
    if parts is not None:
        layers = replace(full, spec=stage_spec(full.spec, stage))
        parts = replace(parts, whole=meta_layers(layers, site))
    return replace(task, spec=stage_spec(task.spec, stage)), parts


def rounding(context: BuildContext, config: SimpleNamespace) -> BuildContext:
    """The context with the format of the checkpoint, if the settings round nothing. A setting that
    names a checkpoint format, fp8 or mxfp4, rounds floats only."""
    if context.quantization in ROUNDS and method(config) is not None:
        return replace(context, quantization="none")
    if context.quantization != "none":
        return context
    return replace(context, quantization=scheme(config))


def staging(config: SimpleNamespace) -> torch.device | None:
    """The host where weights are quantised: a GPU may have no room for all of them as floats."""
    return None if method(config) is None else torch.device("cpu")


def _weights(
    checkpoint: Checkpoint, spec: Decoder, task: ServedTask, scaled: bool
) -> Iterator[tuple[str, Stored]]:
    """The checkpoint's weights without unused KV scales, and those of the extra files."""
    unread = (".k_scale", ".v_scale") if has_kv_scales(checkpoint.config) and not scaled else ()
    stored = (pair for pair in checkpoint.tensors(spec) if not pair[0].endswith(unread))
    return chain(stored, task.files.tensors() if task.files and task.recipe else ())


def _has_scales(codes: KVCodes | None) -> bool:
    return codes is not None and codes.dtype is torch.float8_e4m3fn


def _check_unlisted(
    config: SimpleNamespace, task: Task, context: BuildContext, in_parts: bool, *, patched: bool
) -> None:
    """Raises `ModelError` for what the code of transformers cannot do here."""
    name = config.architectures[0]
    if patched:
        raise unsupported(name, "only a spec takes single tensors")
    if why := _needs_spec(task, context, in_parts):
        raise unsupported(name, why)


def _needs_spec(task: Task, context: BuildContext, in_parts: bool) -> str | None:
    """The first requested feature that needs a spec; None if there is none."""
    if task == "embed" or context.quantization != "none":
        return "only a spec can be embedded or quantised"
    if context.codes is not None:
        return f"only a spec can have {context.codes} pages"
    return "only a spec can be cut for several ranks" if in_parts else None


def _by_transformers(path: Path, checkpoint: Checkpoint, context: BuildContext) -> LoadedModel:
    """Load an unlisted architecture with the code of transformers; see
    `models.transformers_backend`."""
    config = checkpoint.config
    if why := transformers_backend.refuses(config):
        raise unsupported(config.architectures[0], why)
    model, spec = transformers_backend.load_transformers_model(path, config, context)
    log.warning(
        "%s has no spec here: it runs in the slower code of transformers", config.architectures[0]
    )
    return LoadedModel(
        model=model.eval(),
        spec=spec,
        config=config,
        max_length=spec.max_length,
        vocab_size=spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=_held_bytes(model),
    )


def _held_bytes(model: Model | EncoderModel | TransformersModel) -> int:
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    return parameters + sum(layer.weight_bytes for layer in model.layers())


def routed(spec: Decoder, kind: str) -> Decoder:
    """The spec with all routers of this kind; checkpoints imply `top_k`."""
    if kind == "top_k":
        return spec
    layers = tuple((mixer, _rerouted(ffn, kind)) for mixer, ffn in spec.layers)
    return replace(spec, layers=layers)


def _rerouted(ffn: Ffn | None, kind: str) -> Ffn | None:
    if isinstance(ffn, Moe):
        return replace(ffn, router=replace(ffn.router, kind=kind))
    if isinstance(ffn, ShortcutMoe):
        branch = replace(ffn.branch, router=replace(ffn.branch.router, kind=kind))
        return replace(ffn, branch=branch)
    if isinstance(ffn, ModalityMoe):
        text, vision = (
            replace(moe, router=replace(moe.router, kind=kind)) for moe in (ffn.text, ffn.vision)
        )
        return ModalityMoe(text, vision)
    return ffn


def _cut(
    full: ServedTask,
    shard: Shard,
    divide: Callable[[Decoder, Shard], Decoder],
    site: BuildContext,
) -> tuple[ServedTask, Parts]:
    """A shard of the full model, and its place in it."""
    part = replace(full, spec=divide(full.spec, shard))
    multiple = max((KINDS[kind].multiple for kind in kinds(site.quantization)), default=1)
    return part, Parts(meta_layers(full, site), shard, multiple)


def meta_layers(task: ServedTask, site: BuildContext) -> list[Layer]:
    """The layers of a model, without memory."""
    return _built(task, replace(site, device=torch.device("meta"), staging=None)).layers()


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
    full: Decoder,
    share: _Share,
    split: _Split,
    device: torch.device,
) -> None:
    """Insert the collectives between ranks: of tensor-parallel shards, or of expert-parallel
    tokens; then those between stages."""
    if not isinstance(model, Model):
        return
    lockstep = split.lockstep
    if share.parts is not None and lockstep is not None:
        kind = ExchangedExperts if lockstep.eplb is None else BalancedExperts
        exchange(model, full.hidden, lockstep, kind)
    elif share.parts is not None:
        shard_modules(model, full.vocab, split.ranks)
    if split.pipeline is not None:
        connect(model, split.pipeline, device)


def _stored(
    checkpoint: Checkpoint, full: ServedTask, own: ServedTask, site: BuildContext, dummy: bool
) -> Iterator[tuple[str, Stored]]:
    """The tensors of the checkpoint, or random ones in their place."""
    if dummy:
        return random_weights(meta_layers(full, site), site.dtype, site.device)
    return _weights(checkpoint, full.spec, own, site.scaled)


def _filled(
    model: Model | EncoderModel,
    stored: Iterator[tuple[str, Stored]],
    layout: Decoder,
    context: BuildContext,
    share: _Share,
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


def _allocated(
    task: ServedTask, site: BuildContext, keeper: WeightKeeper | None
) -> tuple[Model | EncoderModel, KeptWeights | None]:
    """The model without its weights, and its memory in a keeper, if it has any there.

    Raises:
        ModelError: the host has not as much memory as the config's sizes need.
    """
    try:
        if keeper is None:
            return _built(task, site), None
        return build_kept(partial(_built, task), site, keeper)
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise ModelError(
            "The weights that the sizes in config.json need are more than the memory of this "
            "machine. Check these sizes, or serve the model on a larger machine."
        ) from error


def _built(task: ServedTask, site: BuildContext) -> Model | EncoderModel:
    """The body, with its vision tower and its pooling head if it has them. Of several stages only
    the last one, the leader's, has these."""
    model: Model | EncoderModel
    if isinstance(task.spec, DualEncoder):
        model = build_dual_encoder(task.spec, site)
    elif isinstance(task.spec, Encoder):
        model = build_encoder(task.spec, site)
    else:
        model = build(task.spec, site)
        if not model.stage.is_last:
            return model
        if task.spec.tower is not None:
            model.vision = build_tower(task.spec.tower, site)
    if task.recipe is not None:
        model.pooler = Pooler(task.recipe, site)
    return model


def open_checkpoint(path: Path) -> Checkpoint:
    """The reader of this path's format; no weight is read yet."""
    if path.is_dir():
        folders = (RankShardedFolder, MistralFolder)
        return next((kind for kind in folders if kind.fits(path)), SafetensorsFolder)(path)
    if path.is_file() and path.suffix == ".gguf":
        from baton_worker.checkpoint.gguf.file import GgufFile

        return GgufFile(path)
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    raise ModelError(
        f"{path.name} is not a checkpoint that Baton reads. "
        "Give a folder with config.json and .safetensors files, or a .gguf file."
    )
