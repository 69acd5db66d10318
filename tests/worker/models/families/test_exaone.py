"""EXAONE."""

from __future__ import annotations

from typing import Any

import pytest


def test_exaone3_spells_its_fields_in_its_own_way(spec_of: Any) -> None:
    spec = spec_of(
        "ExaoneForCausalLM",
        num_hidden_layers=None,
        num_layers=3,
        layer_norm_epsilon=1e-4,
        activation_function="gelu",
    )
    assert len(spec.layers) == 3 and spec.norm.eps == 1e-4
    assert spec.layers[0][1].activation == "gelu"


@pytest.mark.parametrize("pattern", [4, "LLLG"])
def test_exaone4_rotates_local_layers_only(spec_of: Any, pattern: int | str) -> None:
    spec = spec_of("Exaone4ForCausalLM", sliding_window=16, sliding_window_pattern=pattern)
    assert [mixer.mask.window for mixer, _ in spec.layers] == [16, 16, 16, None]
    assert [mixer.rope is None for mixer, _ in spec.layers] == [False, False, False, True]


def test_exaone4_without_windows_rotates_everywhere(spec_of: Any) -> None:
    from types import SimpleNamespace

    from baton_worker.models.families.exaone import exaone4

    fields = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2}
    sizes = {"intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 10}
    spec = exaone4(SimpleNamespace(**fields, **sizes, sliding_window=None))
    assert all(m.mask.window is None and m.rope is not None for m, _ in spec.layers)  # type: ignore[union-attr]
