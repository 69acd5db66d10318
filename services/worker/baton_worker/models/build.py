"""Spec to modules: one table from spec type to layer class."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from baton_worker.layers.attention import Attention
from baton_worker.layers.layer import Site
from baton_worker.layers.mlp import Glu
from baton_worker.models import spec
from baton_worker.models.decoder import STYLES, Model
from baton_worker.models.names import Names

LAYERS: dict[type, type[nn.Module]] = {spec.Attention: Attention, spec.Glu: Glu}


def build(decoder: spec.Decoder, *, device: torch.device, dtype: torch.dtype) -> Model:
    """The modules of a spec, their parameters uninitialised.

    Raises:
        ModelError: the spec names a rope kind or activation that no table holds, or no attention
            backend accepts one of its layers.
    """
    names = Names(decoder.names)
    blocks = [
        _block(decoder, mixer, ffn, Site(device, dtype, names.at(layer)))
        for layer, (mixer, ffn) in enumerate(decoder.layers)
    ]
    return Model(decoder, blocks, Site(device, dtype, names))


def _block(decoder: spec.Decoder, mixer: Any, ffn: Any, site: Site) -> nn.Module:
    parts = [LAYERS[type(part)](part, decoder.hidden, site) for part in (mixer, ffn)]
    return STYLES[decoder.style](decoder, *parts, site)
