"""What Gemma 3n reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.kv_cache import page_groups
from baton_worker.spec import Glu, KVReuse, QueryBlock, SparseGlu

NAME = "Gemma3nForConditionalGeneration"


def test_the_defaults_are_those_of_the_larger_model(spec_of: Any) -> None:
    """The last fifteen layers read KV of two others, each in the pages of its own group."""
    import torch

    spec = spec_of(NAME)
    mixers = [mixer for mixer, _ in spec.layers]
    assert len(mixers) == 35 and not any(isinstance(mixer, KVReuse) for mixer in mixers[:20])
    assert [mixer.source for mixer in mixers[20:25]] == [18, 18, 18, 18, 19]
    assert mixers[18].rope.base == 1e4 and mixers[34].rope.base == 1e6
    groups = page_groups(spec, 16, torch.bfloat16)
    assert all(groups.of[n] == groups.of[m.source] for n, m in enumerate(mixers) if n >= 20)
    assert [type(ffn) for _, ffn in spec.layers[8:12]] == [SparseGlu, SparseGlu, Glu, Glu]
    assert (spec.altup.num_streams, spec.layer_embeddings.width, spec.head.tied) == (4, 256, True)
    tower = spec.tower
    assert [stage[-1].width for stage in tower.stages] == [128, 256, 640, 1280]
    assert sum(map(len, tower.stages)) == 84 and tower.stages[2][9] == QueryBlock(3, 12, 64, 2, 640)
    assert (tower.stem, tower.fused, tower.side, tower.end_row) == (64, 3840, 16, 0)
    assert (tower.image_token, tower.end_token) == (262_145, 262_144)


def test_what_it_does_not_know_is_refused(spec_of: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"architecture": "resnet50"}, "resnet50"),
        ({"model_args": {"depth": 3}}, "depth"),
        ({"hidden_size": 1024}, "1024"),
        ({"vocab_offset": 5}, "eoi_token_id"),
    ]
    for vision, why in cases:
        with pytest.raises(ModelError, match=why):
            spec_of(NAME, vision_config=vision)
