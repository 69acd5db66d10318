"""Load the vision tower of a checkpoint and nothing else, for encode workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from baton.errors import ModelError
from baton_worker.checkpoint.bf16_expansion import is_expanded
from baton_worker.checkpoint.checkpoint_context import rounding, staging
from baton_worker.checkpoint.dummy import random_weights
from baton_worker.checkpoint.fill import fill
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.loaded_model import held_bytes
from baton_worker.checkpoint.task import is_listed, served_task
from baton_worker.checkpoint.unstack import Stored
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.vision.build import TowerModel
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.quantization.blocks import as_stored
from baton_worker.spec import Decoder


@dataclass(frozen=True, slots=True)
class LoadedTower:
    """A vision tower with its projector."""

    tower: MediaTower
    weight_bytes: int


def load_tower(
    path: Path, context: BuildContext, *, narrow: torch.dtype | None = None, dummy: bool = False
) -> LoadedTower:
    """Load the tower of a checkpoint; weights of the decoder are not read.

    The arguments are those of `load_model`, so that the dtype is that of the whole model.

    Raises:
        ModelError: the path holds no checkpoint, or the model has no vision tower.
    """
    checkpoint = open_checkpoint(path)
    context = rounding(context, checkpoint.config)
    spec = _spec(checkpoint, path)
    dtype = narrow if narrow is not None and is_expanded(spec) else context.dtype
    context = replace(context, dtype=dtype, staging=staging(checkpoint.config))
    assert spec.tower is not None
    model = TowerModel(spec.tower, context)
    stored = _weights(checkpoint, spec, model, context, dummy)
    fill(model, stored, as_stored(spec, checkpoint.config), context.quantization, whole=False)
    model.eval()
    return LoadedTower(model.vision, held_bytes(model))


def _spec(checkpoint: Checkpoint, path: Path) -> Decoder:
    spec = served_task(checkpoint.config, path).spec if is_listed(checkpoint.config) else None
    if isinstance(spec, Decoder) and spec.tower is not None:
        return spec
    raise ModelError(
        "A worker of the role encode runs the vision encoder of a model alone, and this model has "
        "none that Baton runs by itself. Serve it without --encode."
    )


def _weights(
    checkpoint: Checkpoint, spec: Decoder, model: TowerModel, context: BuildContext, dummy: bool
) -> Iterator[tuple[str, Stored]]:
    if dummy:
        return random_weights(model.layers(), context.dtype, context.device)
    return checkpoint.tensors(spec)
