"""Both tables of encoders in GGUF files have the same kinds, by names that the format has."""

from __future__ import annotations

import gguf

from baton.checkpoint.gguf_projector import PROJECTORS
from baton_worker.checkpoint.gguf.projector_names import PROJECTOR_NAMES


def test_every_kind_has_names_of_the_format() -> None:
    assert PROJECTOR_NAMES.keys() == PROJECTORS.keys()
    known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.MMPROJ]}
    known |= {"model.image_newline"}  # Of llava_surgery_v2.py.
    known |= {name.format(bid=number) for name in known for number in range(4)}
    for kind, names in PROJECTOR_NAMES.items():
        stored = {*names.modules, *(name.removesuffix(".weight") for name in names.bare)}
        assert {name.replace("{}", "{bid}") for name in stored} <= known, kind
        assert names.batched <= names.bare.keys(), kind
