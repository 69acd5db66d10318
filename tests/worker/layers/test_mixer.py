"""Inputs that every mixer with a bounded memory refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.kernels.kv_codes import CODES
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.mixer import Carrying
from baton_worker.models.build import LAYERS

MIXERS: list[spec.Recurrent] = [
    spec.ShortConv(channels=6, taps=4),
    spec.LinearAttention(3, 8, (0.5, 0.1, 1e-3), spec.Norm(1e-6)),
    spec.DeltaNet(2, 4, 6, 8, 4, spec.GatedNorm(1e-6, 4, gate_first=False, shared=True)),
    spec.StateSpace(4, 3, 2, 5, 4, spec.GatedNorm(1e-6)),
    spec.SelectiveStateSpace(4, 3, 5, 6, 4, spec.Norm(1e-6)),
    spec.Mamba(channels=6, state_size=5, step_rank=3, taps=4),
]


@pytest.mark.parametrize("settings", MIXERS, ids=lambda settings: type(settings).__name__)
def test_codes_and_texts_that_see_both_ways_are_refused(
    settings: spec.Recurrent, context: BuildContext
) -> None:
    kind: Any = LAYERS[type(settings)]
    for codes in CODES.values():
        with pytest.raises(ModelError, match="--kv-cache-dtype auto"):
            kind(settings, 10, replace(context, codes=codes))
    layer = kind(settings, 10, context)
    assert isinstance(layer, Carrying) and layer.rope is None
    texts: Any = (object(),)
    step = ForwardContext(torch.zeros(1, dtype=torch.int64), {}, {}, texts=texts)
    with pytest.raises(ModelError, match=f"^{layer.what} .* cannot see both ways"):
        layer(torch.zeros(1, 10), step, None, None)


def test_every_mixer_of_bounded_memory_is_tested_here() -> None:
    assert {type(m) for m in MIXERS} == {k for k in LAYERS if issubclass(k, spec.Recurrent)}
