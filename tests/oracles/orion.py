"""Orion-14B (arXiv:2401.12246): Llama with LayerNorm in place of the root-mean-square norm."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.plain import PlainLlama


class Orion(PlainLlama):
    """The bias of each norm is stored beside its weight."""

    def norm(self, name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        normed = centred / (variance + self.config.rms_norm_eps).sqrt()
        return normed * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]
