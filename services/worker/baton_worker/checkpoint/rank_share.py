"""The share of a model that one rank loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton_worker.checkpoint.empty_model import meta_layers
from baton_worker.checkpoint.quantized_loading import kinds
from baton_worker.checkpoint.task import ServedTask
from baton_worker.distributed.communicator import Communicator, SingleRank
from baton_worker.distributed.pipeline_parallel import Pipeline, stage_spec
from baton_worker.distributed.shard_spec import Shard, deal, shard_spec
from baton_worker.distributed.shard_weights import Parts
from baton_worker.distributed.step_sync import StepSync
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.spec import Decoder, Stage


@dataclass(frozen=True, slots=True)
class ModelSplit:
    """How the processes of a worker, or of a group of workers, split a model."""

    ranks: Communicator = field(default_factory=SingleRank)
    """Communicator of the ranks; in a pipeline, of those of one stage."""
    lockstep: StepSync | None = None
    """Step synchronization of data-parallel workers that share experts."""
    pipeline: Pipeline | None = None
    """The stages, of consecutive layers each."""
    experts: str | None = None
    """Key of `spec.expert_map.PLACEMENTS`: each expert is on one rank, or on one of the
    data-parallel workers in `lockstep`. None: each rank has a part of every expert."""
    context_parallel: int = 1
    """Neighbouring ranks with the same KV heads that divide the tokens."""

    @property
    def is_parallel(self) -> bool:
        """Whether several processes have parts of the model."""
        return self.ranks.size > 1 or self.lockstep is not None or self.pipeline is not None


@dataclass(frozen=True, slots=True)
class RankShare:
    """This rank's share of a model."""

    full: ServedTask
    """The model of which this is a share."""
    task: ServedTask
    parts: Parts | None
    """Its place in the full model; None if no rank shares its layers."""
    all_stages: Decoder | None = None
    """See `LoadedModel`."""
    elsewhere: Sequence[Layer] = ()
    """The layers of the full model, where other stages have some of them."""


def rank_share(full: ServedTask, context: BuildContext, split: ModelSplit) -> RankShare:
    """The layers of this rank: a shard of those of its stage.

    Raises:
        SettingsError: the model cannot be split over these ranks.
    """
    task, parts = _shard(full, context, split)
    if split.pipeline is None:
        return RankShare(full, task, parts)
    stage, elsewhere = split.pipeline.layers_of(full.spec), meta_layers(full, context)
    staged, parts = _staged(full, task, parts, stage, context)
    return RankShare(full, staged, parts, task.spec, elsewhere)


def _shard(
    full: ServedTask, context: BuildContext, split: ModelSplit
) -> tuple[ServedTask, Parts | None]:
    """This rank's shard of all layers, and its place in the full model; that model if no rank
    shares its layers."""
    lockstep = split.lockstep
    peers, divide = (split.ranks, shard_spec) if lockstep is None else (lockstep.ranks, deal)
    if peers.size == 1:
        return full, None
    eplb = None if lockstep is None else lockstep.eplb
    redundant = None if eplb is None else eplb.num_redundant_experts
    shard = Shard(peers.rank, peers.size, split.experts, split.context_parallel, redundant)
    multiple = max((KINDS[kind].multiple for kind in kinds(context.quantization)), default=1)
    task = replace(full, spec=divide(full.spec, shard))
    return task, Parts(meta_layers(full, context), shard, multiple, ranks=peers)


def _staged(
    full: ServedTask, task: ServedTask, parts: Parts | None, stage: Stage, context: BuildContext
) -> tuple[ServedTask, Parts | None]:
    """The layers of one stage of a pipeline, and their place in the full model."""
    if parts is not None:
        layers = replace(full, spec=stage_spec(full.spec, stage))
        parts = replace(parts, whole=meta_layers(layers, context))
    return replace(task, spec=stage_spec(task.spec, stage)), parts
