"""The tensors of an encoder's GGUF file under their Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from baton.checkpoint.gguf_header import TensorEntry, read_head
from baton.checkpoint.gguf_projector import Encoder, Projector
from baton.errors import ModelError
from baton_worker.checkpoint.gguf.blocks import BLOCK_TYPES
from baton_worker.checkpoint.gguf.data import GgufData, unpermuted
from baton_worker.checkpoint.gguf.projector_names import PROJECTOR_NAMES
from baton_worker.checkpoint.row_reader import Rows
from baton_worker.checkpoint.unstack import Stored
from baton_worker.kernels.quantized_weights import BlockQuantized

_PATCHES, _SECOND_FRAME = "v.patch_embd.weight", "v.patch_embd.weight.1"
_BREAK = "v.token_embd.img_break"
"""A copy of a row of the language model's embedding."""
_FLOATS = (_PATCHES, "v.position_embd.weight")
"""Tensors that no matrix product takes as they are."""
_UNREAD = ("a.", "mm.a.", "v.head.")
"""Prefixes of an encoder of sounds in the same file, and of SigLIP's pooling."""
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_SWAP = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}


class ProjectorFile:
    """One file, memory-mapped; tensors are read one at a time."""

    def __init__(self, projector: Projector) -> None:
        head = read_head(projector.path)
        self._encoder, self._data = Encoder(head), GgufData(projector.path)
        self._stored = {tensor.name: tensor for tensor in head.tensors}
        self._names = PROJECTOR_NAMES[projector.kind]
        deep = projector.config["vision_config"].get("deepstack_visual_indexes", [])
        self._deep = {str(layer): str(number) for number, layer in enumerate(deep)}

    def tensors(self) -> Iterator[tuple[str, Stored]]:
        """Every tensor once. Raises `ModelError` for one that the family does not have."""
        for stored, tensor in self._stored.items():
            if stored not in (_SECOND_FRAME, _BREAK) and not stored.startswith(_UNREAD):
                yield self._name(stored), self._read(tensor)
        self._data.release()

    def _name(self, stored: str) -> str:
        module, _, suffix = stored.rpartition(".")
        number = re.search(r"\.(\d+)\.", module)
        layer = number[1] if number and not module.startswith("mm.") else ""
        pattern = module.replace(f".{layer}.", ".{}.") if layer else module
        if (bare := f"{pattern}.{suffix}") in self._names.bare:
            return self._names.bare[bare].format(layer)
        if self._encoder.swapped:
            pattern = re.sub("ffn_(up|down)$", lambda found: _SWAP[found[0]], pattern)
        if pattern not in self._names.modules:
            raise ModelError(
                f"The encoder's GGUF file holds {stored}, which its kind {self._encoder.kind} does "
                "not have. Convert it again with a current convert_hf_to_gguf.py."
            )
        layer = self._deep[layer] if module.startswith("v.deepstack.") else layer
        return f"{self._names.modules[pattern].format(layer)}.{suffix}"

    def _read(self, tensor: TensorEntry) -> Tensor | BlockQuantized | Rows:
        if len(tensor.shape) != 2 or tensor.name in (*_FLOATS, *self._names.bare):
            return self._values(tensor)
        order = None
        if self._names.permuted and re.search(r"\.attn_[qk]\.", tensor.name):
            order = unpermuted(tensor.shape[0], self._encoder.of("attention.head_count"))
        if tensor.kind in BLOCK_TYPES:
            return self._data.blocks(tensor, order)
        return self._data.rows(tensor, order)

    def _values(self, tensor: TensorEntry) -> Tensor:
        """A tensor as floats; the patches of two frames are one tensor in checkpoints."""
        values = torch.from_numpy(np.array(self._data.floats(tensor)))
        if tensor.name == _PATCHES and _SECOND_FRAME in self._stored:
            second = torch.from_numpy(np.array(self._data.floats(self._stored[_SECOND_FRAME])))
            return torch.stack((values, second), dim=2)
        if tensor.name == _PATCHES and self._names.flat:
            return values.permute(0, 2, 3, 1).flatten(1)
        if tensor.name.endswith(_BOUNDS):
            return values.squeeze()
        if tensor.name in self._names.batched:
            return values.reshape(1, -1, values.shape[-1])
        return values - 1 if tensor.name in self._names.plus_one else values
