"""Policy: whether steps are launched ahead, or the reason why not."""

from __future__ import annotations

import torch

from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.models.decoder import Model
from baton_worker.sampling import Sampler


def refuses(
    config: Config, device: torch.device, loaded: LoadedModel, sampler: Sampler | None
) -> str | None:
    """Why every step is read before the next one is launched, as half a sentence; None if it need
    not be."""
    if device.type != "cuda":
        return "a CPU computes steps itself"
    if not config.async_scheduling:
        return "--no-async-scheduling"
    if config.pipeline_parallel_size > 1:
        return "the last stage has the tokens that the first one begins with"
    if config.data_parallel_size > 1:
        return "the workers of its group agree on every step, on the host"
    if config.expert_stats_window or config.runtime_stats:
        return "--expert-stats-window and --runtime-stats look at every step"
    if config.enable_lora:
        return "the adapters of every step's tokens are chosen on the host"
    if not loaded.generates:
        return "the model has no next tokens"
    if not isinstance(loaded.model, Model):
        return "transformers' own code runs this model"
    if (reason := loaded.model.launch_blocker) is not None:
        return reason
    if loaded.recipe is not None and loaded.recipe.whole:
        return "it embeds whole texts"
    if not (sampler or Sampler()).launches_on(device):
        return "the sampler needs the host"
    return None
