"""Specs of configs as the first checkpoints of an architecture spell them on the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from baton_worker.models import resolve
from baton_worker.spec import Decoder
from baton_worker.spec.config_limits import check_sizes

SpecOf: TypeAlias = Callable[..., Decoder]
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
    "vocab_size": 100,
}


@pytest.fixture
def spec_of() -> SpecOf:
    """The spec of an architecture whose config.json holds these fields and the common sizes;
    a field that is None is left out."""

    def make(architecture: str, **fields: Any) -> Decoder:
        every = _SIZES | {"architectures": [architecture]} | fields
        text = json.dumps({name: value for name, value in every.items() if value is not None})
        config = json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))
        check_sizes(config)  # As for a file.
        return resolve(config)

    return make
