"""The contract between layers and the loader."""

from __future__ import annotations

import pytest

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer


def test_parameters_are_built_where_the_site_says(context: BuildContext) -> None:
    parameter = context.empty(2, 3)
    assert parameter.shape == (2, 3) and not parameter.requires_grad
    assert (parameter.device, parameter.dtype) == (context.device, context.dtype)


def test_a_layer_must_say_what_fills_it() -> None:
    with pytest.raises(NotImplementedError):
        Layer().weight_targets()
