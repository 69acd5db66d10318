"""Mamba-2 over pages of inputs; each page keeps the state at its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.recurrent.convolution import Places
from baton_worker.kernels.recurrent.ssm_states import (
    CpuFading,
    CpuSkip,
    CpuStates,
    Fading,
    Shape,
    Snapshots,
    choose,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.invariant import exp, gated_silu, softplus
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.ssm.gated_norm import GatedNorm
from baton_worker.layers.ssm.page_segments import Segments, splitter
from baton_worker.layers.ssm.short_conv import Taps


class StateSpace(Carrying):
    """The mixer of Mamba-2 (state space duality, Dao and Gu 2024, arXiv:2405.21060): per head,

        state[t] = exp(dt[t] A) state[t - 1] + dt[t] B[t]^T x[t]    float32 [state_size, head_dim]
        out[t] = C[t] state[t] + D x[t]

    Pages as in `layers.ssm.lightning_attention`: a token is computed from its page's state and the
    tokens up to its own, in order (see `kernels.ssm_states`), so its bits depend on neither chunk
    boundaries nor batch. The page row of a token:

        | C, x, B before the convolution | x, B after it | dt before its softplus |
    """

    what = "A state space"

    def __init__(self, settings: spec.StateSpace, hidden: int, context: BuildContext) -> None:
        super().__init__(context)
        refused = CpuStates.refuses(context.dtype, context.device)
        self.call = self.backend = splitter(context, refused, settings.taps)
        self.settings = settings
        self._inner = [settings.group_width, settings.width, settings.group_width]
        roles = ("ssm_gate", "ssm_c", "ssm_x", "ssm_b", "ssm_dt")
        sizes = (settings.width, *self._inner, settings.num_heads)
        rows = dict(zip(roles, sizes, strict=True))
        self.project = Linear(hidden, rows, context, bias=settings.bias)
        channels = dict(zip(("ssm_conv_c", "ssm_conv_x", "ssm_conv_b"), self._inner, strict=True))
        places = Places(settings.group_width, settings.num_heads, settings.conv_width)
        form = (settings.taps, settings.conv_bias, context, places, settings.activation)
        self.taps = Taps(channels, *form)
        self.rates = Rates(settings, context)
        self.norm = None
        if settings.norm is not None:
            self.norm = GatedNorm(settings.norm, settings.width, "ssm_norm", context)
        bias = settings.bias if settings.output_bias is None else settings.output_bias
        self.output = Linear(settings.width, {"ssm_output": hidden}, context, bias=bias)
        self._scales = None
        if settings.scales is not None:
            counts, scales = torch.tensor(sizes), torch.tensor(settings.scales)
            self._scales = scales.repeat_interleave(counts).to(context.device, context.dtype)
        self._kernel = choose(
            _shape(settings), context.dtype, context.device, exact=bool(context.row_block)
        )

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Snapshots, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step has texts with bidirectional attention.
        """
        self.check(step)
        segments: Segments = step.plans[self.call]
        projected = self.project(x)
        if self._scales is not None:
            projected *= self._scales
        gate, brought = projected.tensor_split((self.settings.width,), dim=-1)
        mixed = self.taps(brought, step.slots, segments.earlier, pages.tokens)
        c, inner, _ = torch.split(mixed, self._inner, dim=-1)
        query = torch.unflatten(c, 1, (self.settings.num_groups, -1))
        fading = self.rates.fading(segments, pages, self.settings.limits)
        attended = segments.run(self._kernel, pages, query, fading)
        read = self.rates.skipped(attended, inner)
        gated = gated_silu(read, gate) if self.norm is None else self.norm(read, gate)
        out: Tensor = self.output(gated, residual)
        return out


def _shape(settings: spec.StateSpace) -> Shape:
    """The layout of a token's page row, with B as keys and x as values."""
    value = settings.conv_width
    key = value + settings.width
    heads, groups = settings.num_heads, settings.num_groups
    return Shape(heads, groups, settings.state_size, settings.head_dim, key, value)


class Rates(Layer):
    """A_log, D and dt_bias per head."""

    def __init__(
        self, settings: spec.StateSpace | spec.SelectiveStateSpace, context: BuildContext
    ) -> None:
        super().__init__()
        self._name = context.name("ssm")
        on_cpu = CpuStates.refuses(context.dtype, context.device) is None
        self._kernels = (CpuFading(), CpuSkip()) if on_cpu else None
        context = replace(context, dtype=torch.float32)  # They are exponentiated.
        self.log = context.empty(settings.num_heads)
        self.skip = context.empty(settings.num_heads)
        self.dt_bias = context.empty(settings.num_heads)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """A_log, the logarithm of -A, D and the bias of dt."""
        yield f"{self._name}.A_log", self.log
        yield f"{self._name}.D", self.skip
        yield f"{self._name}.dt_bias", self.dt_bias

    def fading(
        self, segments: Segments, snapshots: Snapshots, limits: tuple[float, float]
    ) -> Fading:
        """The decay of `segments.pages`, whose rows end with a dt per head. Unwritten tokens come
        after all queries, so they do not count."""
        if self._kernels is not None:
            parameters = self.log, self.dt_bias, limits
            return self._kernels[0](snapshots.tokens, segments.chains, *parameters)
        dt = snapshots.tokens[:, :, 0, 0, -len(self.dt_bias) :][segments.pages].float()
        dt = softplus(dt.transpose(1, 2) + self.dt_bias[:, None]).clamp(*limits)
        return Fading((dt * -exp(self.log)[:, None]).cumsum(-1), dt)

    def skipped(self, attended: Tensor, x: Tensor) -> Tensor:
        """float32 [T, heads, head_dim] plus D times x [T, width]: float32 [T, width]; the first may
        be overwritten."""
        if self._kernels is not None:
            self._kernels[1](x, self.skip, attended)
            return attended.flatten(1)
        heads = torch.unflatten(x.float(), 1, (len(self.skip), -1))
        return (attended + heads * self.skip[:, None]).flatten(1)
