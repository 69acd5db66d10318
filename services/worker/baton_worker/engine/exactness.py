"""Whether a token's numbers depend on its own sequence alone: docs/internals/exact-numbers.md."""

from __future__ import annotations

import torch

from baton.errors import SettingsError
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.models.decoder import Model
from baton_worker.spec import Recurrent


def check(config: Config, device: torch.device, loaded: LoadedModel) -> None:
    """Refuse what --exact cannot promise on a GPU.

    Raises:
        SettingsError: it depends on the other sequences of a step, or on where it runs.
    """
    if config.exact and device.type != "cpu" and (reason := refuses(config, loaded)):
        raise SettingsError(f"--exact: {reason}. Leave it out, or use --device cpu.")


def refuses(config: Config, loaded: LoadedModel) -> str | None:
    """Why numbers on a GPU are not exact, as half a sentence; None if they are."""
    if config.data_parallel_size > 1:
        return "NCCL adds up what the workers of an expert group have, in an order of its own"
    if config.enable_lora:
        return "products of adapters have as many rows as a step"
    if not isinstance(loaded.model, Model):
        return "transformers' own code runs this model"
    if loaded.spec.tower is not None:
        return "images are encoded with products of any number of rows"
    recurrent = any(isinstance(mixer, Recurrent) for mixer, _ in loaded.spec.layers)
    norms = "norms of recurrent layers are torch's" if recurrent else None
    if (reason := norms or loaded.model.capture_blocker) is not None:
        return f"a part of this model has no kernel of a constant shape ({reason})"
    if config.moe_backend not in ("auto", "triton"):
        return f"--moe-backend {config.moe_backend} multiplies as many rows as an expert has"
    return None
