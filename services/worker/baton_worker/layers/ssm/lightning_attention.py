"""Linear attention over pages of KV; each page keeps the state at its start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.kv_pages import scatter
from baton_worker.kernels.recurrent.ssm_states import (
    CpuStates,
    Fading,
    Shape,
    Snapshots,
    choose,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.invariant import sigmoid
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.mlp import activation
from baton_worker.layers.norm import norm
from baton_worker.layers.ssm.page_segments import Segments, splitter


class LinearAttention(Carrying):
    """Linear attention whose weights decay with distance (Lightning Attention-2, Qin et al. 2024,
    arXiv:2401.04658; MiniMax-01, arXiv:2501.08313): with a head's decay r,

        state[t] = exp(-r) state[t - 1] + k[t]^T v[t]        float32 [head_dim, head_dim]
        out[t] = q[t] state[t]

    A page holds its tokens' KV and the state before its first token. A token is computed from its
    own page alone, in a fixed order of sums, so chunk boundaries do not change the bits; the state
    of the next page is computed from this page when the next page starts (see
    `kernels.ssm_states`).

        state[page] | k v | k v | k v | k v |     out of the third token of a page
                 `-----------------'              = exp(-3 r) q state + the first three, masked
    """

    what = "Linear attention"

    def __init__(self, settings: spec.LinearAttention, hidden: int, context: BuildContext) -> None:
        super().__init__(context)
        refused = CpuStates.refuses(context.dtype, context.device)
        self.call = self.backend = splitter(context, refused)
        self.num_heads, self.head_dim = settings.num_heads, settings.head_dim
        self.width = width = settings.num_heads * settings.head_dim
        self.project = Linear(hidden, dict.fromkeys(("query", "key", "value"), width), context)
        self.gate = Linear(hidden, {"linear_gate": width}, context)
        self.norm: nn.Module = norm(settings.norm, width, "linear_norm", context)
        self.output = Linear(width, {"linear_output": hidden}, context)
        self._activation = activation(settings.activation)
        self._rates = torch.tensor(settings.decays, device=context.device)
        heads, dim = settings.num_heads, settings.head_dim
        self._kernel = choose(
            Shape(heads, heads, dim, dim, 0, width),
            context.dtype,
            context.device,
            exact=bool(context.row_block),
        )

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Snapshots, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step has texts with bidirectional attention.
        """
        self.check(step)
        query, kv = self._activation(self.project(x)).tensor_split((self.width,), dim=1)
        scatter(kv[:, None, None].contiguous(), step.slots, pages.tokens)
        segments: Segments = step.plans[self.call]
        query = torch.unflatten(query, 1, (self.num_heads, -1)).float()
        fading = self._fading(len(segments.pages), pages.tokens.shape[1], x.device)
        attended = segments.run(self._kernel, pages, query, fading)
        gated = sigmoid(self.gate(x)) * self.norm(attended.to(x.dtype).flatten(1))
        out: Tensor = self.output(gated, residual)
        return out

    def _fading(self, count: int, size: int, device: torch.device) -> Fading:
        """The decay of `count` pages, equal for all tokens."""
        token = torch.arange(1, size + 1, dtype=torch.float32, device=device)
        faded = (-self._rates[:, None] * token).expand(count, -1, -1)
        return Fading(faded, torch.ones_like(faded))
