"""Delta nets over pages of KV; each page keeps the state at its start."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.recurrent.convolution import Places
from baton_worker.kernels.recurrent.delta import CpuDelta
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.ssm.delta_inputs import Decays, inputs
from baton_worker.layers.ssm.delta_scan import walk
from baton_worker.layers.ssm.gated_norm import GatedNorm
from baton_worker.layers.ssm.page_segments import Segments, splitter
from baton_worker.layers.ssm.short_conv import Taps


class DeltaNet(Carrying):
    """Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464) and Kimi Delta Attention
    (arXiv:2510.26692).

    A page holds its tokens' KV and the state before its first token. That state is computed from
    the previous page when the page starts. A token is computed from its own page alone: from the
    page's state, in blocks of a fixed number of tokens, up to its own block. The output of a token
    does not depend on later ones, so chunk boundaries do not change the bits.

        state[page] -> | k v  k v  k v  k v | -> | k v  k v  ... |     a new token in the second
                          block, summed up         out, for it          block of its page

    A page keeps K and V after the convolution in the model's dtype, and the inputs of beta and
    decays; the rest is float32. The tokens' state updates are not kept, so a decode step solves its
    block again: in bfloat16 they would lose half of their digits, and in float32 they would double
    the page.
    """

    what = "A delta net"

    def __init__(self, settings: spec.DeltaNet, hidden: int, context: BuildContext) -> None:
        super().__init__(context)
        refused = CpuDelta.refuses(context.dtype, context.device)
        self.call = self.backend = splitter(context, refused, settings.taps)
        self._settings = settings
        self.inputs = inputs(settings, hidden, context)
        key, value = settings.key_width, settings.value_width
        channels = {"delta_query_conv": key, "delta_key_conv": key, "delta_value_conv": value}
        places = Places(key, settings.num_heads + settings.decays, settings.convolved)
        self.taps = Taps(channels, settings.taps, False, context, places, settings.activation)
        self.decays = Decays(settings, context)
        self._walk = walk(settings, self.decays, context)
        self.norm = GatedNorm(settings.norm, value, "delta_norm", context)
        self.output = Linear(value, {"delta_output": hidden}, context)

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Snapshots, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step has texts with bidirectional attention.
        """
        self.check(step)
        segments: Segments = step.plans[self.call]
        inputs, rates, gate = self.inputs(x)
        mixed = self.taps(inputs, step.slots, segments.earlier, pages.tokens, *rates)
        output = self._walk(pages, mixed[:, : self._settings.key_width], segments)
        out: Tensor = self.output(self._ordered(self.norm(output, gate)), residual)
        return out

    def _ordered(self, heads: Tensor) -> Tensor:
        """The channels [T, value_width] in the order of the output projection."""
        settings = self._settings
        if not settings.tiled_output:
            return heads
        grid = (settings.num_key_heads, -1, settings.value_dim)
        return torch.unflatten(heads, -1, grid).transpose(1, 2).flatten(1)
