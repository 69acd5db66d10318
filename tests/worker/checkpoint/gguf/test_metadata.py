"""Readers shared by several rows of the GGUF table."""

from __future__ import annotations

from baton_worker.checkpoint.gguf.metadata import (
    each,
    head_size,
    layer_kinds,
    layer_norm,
    partial,
)
from tests.support.worker.gguf_metadata import Fake


def test_the_size_of_a_head_is_said_or_follows() -> None:
    file = Fake(embedding_length=64, attention__head_count=4)
    assert head_size(file) == 16
    assert head_size(Fake(embedding_length=64, attention__head_count=4, attention__key_length=32))
    assert partial(file) == {"partial_rotary_factor": 1.0}


def test_one_epsilon_has_many_names() -> None:
    fields = layer_norm(Fake(attention__layer_norm_epsilon=1e-6))
    assert fields["layer_norm_eps"] == fields["norm_eps"] == 1e-6


def test_layers_are_listed_or_left_to_the_architecture() -> None:
    listed = Fake(attention__sliding_window_pattern=[True, False])
    assert layer_kinds(listed) == ["sliding_attention", "full_attention"]
    assert layer_kinds(Fake(attention__sliding_window_pattern=6)) is None
    assert layer_kinds(Fake()) is None


def test_one_value_is_for_every_layer() -> None:
    assert each(4, 3) == [4, 4, 4]
    assert each([1, 2], 2) == [1, 2]
