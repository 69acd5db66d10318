"""No module of an MXFP4 checkpoint has a format of its own."""

from __future__ import annotations

from types import SimpleNamespace

from baton_worker.quantization.methods import formats


def test_the_spec_names_what_is_stored_in_blocks() -> None:
    config = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="mxfp4"))
    of = formats(config)
    assert of is not None and of("model.layers.0.mlp.experts.gate_up_proj") is None
