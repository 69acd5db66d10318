"""Solar Pro: Llama with block skip connections.

Before a layer of `bskcn_3` the stream becomes 0.8 of what entered the last layer of `bskcn_1`
plus 0.2 of itself; likewise `bskcn_4` with `bskcn_2`.
"""

from __future__ import annotations

from torch import Tensor

from tests.oracles.plain import PlainLlama


class Solar(PlainLlama):
    """Keeps what entered the layers that are named."""

    kept_1: Tensor
    kept_2: Tensor

    def block(self, layer: int, x: Tensor) -> Tensor:
        c = self.config
        if layer in c.bskcn_1:
            self.kept_1 = x
        if layer in c.bskcn_2:
            self.kept_2 = x
        if layer in c.bskcn_3:
            x = 0.8 * self.kept_1 + 0.2 * x
        if layer in c.bskcn_4:
            x = 0.8 * self.kept_2 + 0.2 * x
        return super().block(layer, x)
