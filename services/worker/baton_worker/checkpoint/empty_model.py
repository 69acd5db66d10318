"""A model without its weights: layers that a checkpoint fills."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from baton.errors import ModelError
from baton_worker.checkpoint.kept_weights import KeptWeights, WeightKeeper, build_kept
from baton_worker.checkpoint.task import ServedTask
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.models.build import build
from baton_worker.models.decoder import Model
from baton_worker.models.dual_encoder import build_dual_encoder
from baton_worker.models.encoder import EncoderModel, build_encoder
from baton_worker.models.vision.build import build_tower
from baton_worker.pooling.pooler import Pooler
from baton_worker.spec import DualEncoder, Encoder


def empty_model(
    task: ServedTask, context: BuildContext, keeper: WeightKeeper | None
) -> tuple[Model | EncoderModel, KeptWeights | None]:
    """The model in allocated memory, and that memory if it is of the keeper.

    Raises:
        ModelError: the host has not as much memory as the config's sizes need.
    """
    try:
        if keeper is None:
            return _built(task, context), None
        return build_kept(partial(_built, task), context, keeper)
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise ModelError(
            "The weights that the sizes in config.json need are more than the memory of this "
            "machine. Check these sizes, or serve the model on a larger machine."
        ) from error


def meta_layers(task: ServedTask, context: BuildContext) -> list[Layer]:
    """The layers of a model, without memory."""
    return _built(task, replace(context, device=torch.device("meta"), staging=None)).layers()


def _built(task: ServedTask, context: BuildContext) -> Model | EncoderModel:
    """The body, with its vision tower and its pooling head if it has them. Of several stages only
    the last one, the leader's, has these."""
    model: Model | EncoderModel
    if isinstance(task.spec, DualEncoder):
        model = build_dual_encoder(task.spec, context)
    elif isinstance(task.spec, Encoder):
        model = build_encoder(task.spec, context)
    else:
        model = build(task.spec, context)
        if not model.stage.is_last:
            return model
        if task.spec.tower is not None:
            model.vision = build_tower(task.spec.tower, context)
    if task.recipe is not None:
        model.pooler = Pooler(task.recipe, context)
    return model
