"""Every family, imported so that the table of architectures is complete."""

from __future__ import annotations

from baton_worker.models.families import (
    baichuan,
    cohere,
    delta,
    exaone,
    gemma,
    glm,
    gpt,
    hybrid,
    latent,
    llama,
    mamba,
    mamba2,
    mixtures,
    nemotron,
    olmo,
    pangu,
    phi,
    scaled,
    step,
    vision_language,
)
from baton_worker.models.families.common import DECLARED

__all__ = [
    "DECLARED",
    "baichuan",
    "cohere",
    "delta",
    "exaone",
    "gemma",
    "glm",
    "gpt",
    "hybrid",
    "latent",
    "llama",
    "mamba",
    "mamba2",
    "mixtures",
    "nemotron",
    "olmo",
    "pangu",
    "phi",
    "scaled",
    "step",
    "vision_language",
]
