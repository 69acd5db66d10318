"""The selective scan over pages of its inputs; each page keeps the state at its start."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.recurrent import chains
from baton_worker.kernels.recurrent.convolution import Places, put
from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import CpuSkip, CpuStates, Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.invariant import gated_silu
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.norm import norm
from baton_worker.layers.ssm.decay import StateDecay
from baton_worker.layers.ssm.page_segments import DeviceCut, Segments
from baton_worker.layers.ssm.scan_plan import Scans, Walks
from baton_worker.layers.ssm.selective_scan import scan
from baton_worker.layers.ssm.short_conv import Taps


class Mamba(Carrying):
    """A selective state space (Mamba, Gu and Dao 2023, arXiv:2312.00752): with a channel's input x,
    time step d > 0 and rates a < 0, and vectors b and c shared by all channels,

        state[t] = exp(d a) state[t - 1] + d x b        float32 [state_size, channels]
        out[t] = c state[t] + skip x

    A page holds x, d and b of its tokens and the state before its first token. A token is computed
    by a scan of its own page from the first token, so chunk boundaries do not change the bits. The
    state of the next page is computed when it starts.
    """

    what = "A state space"

    def __init__(self, settings: spec.Mamba, hidden: int, context: BuildContext) -> None:
        super().__init__(context)
        refused = CpuScan.refuses(context.dtype, context.device)
        # A kernel takes chains, which the device computes.
        on_device = chains.runs(context.device, context.dtype, refused)
        self.backend = DeviceCut(settings.taps) if on_device else Scans(settings.taps)
        self.call = self.backend
        size, bias = settings.channels, settings.bias
        self._channels = size
        self.project = Linear(hidden, {"scan_input": size, "scan_gate": size}, context, bias=bias)
        form = (settings.taps, settings.conv_bias, context, Places(0, at=size), settings.activation)
        self.taps = Taps({"conv": size}, *form)
        self._widths = (settings.step_rank, settings.state_size, settings.state_size)
        self.select: Bare = Linear(size, {"scan_select": sum(self._widths)}, context)
        roles = ("scan_step_norm", "scan_write_norm", "scan_read_norm")
        self.norms = nn.ModuleList(
            norm(settings.norm, width, role, context)
            for width, role in zip(self._widths, roles, strict=True)
            if settings.norm is not None
        )
        self.step = Linear(settings.step_rank, {"scan_step": size}, context)
        self.dynamics = StateDecay(settings, context)
        self._scan = scan(size, self.dynamics, context)
        on_cpu = CpuStates.refuses(context.dtype, context.device) is None
        self._add_skip = CpuSkip() if on_cpu else None
        self.output = Linear(size, {"scan_output": hidden}, context, bias=bias)

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Snapshots, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step has texts with bidirectional attention.
        """
        self.check(step)
        walks: Walks | Segments = step.plans[self.call]
        inputs, gate = self.project(x).chunk(2, dim=-1)
        mixed = self.taps(inputs, step.slots, walks.earlier, pages.tokens)
        narrow, write, read = self._selected(mixed)
        put(pages.tokens[..., 2 * self._channels :], step.slots, self.step(narrow), write)
        scanned = self._skip(self._scan(pages, read, walks), mixed)
        out: Tensor = self.output(gated_silu(scanned, gate), residual)
        return out

    def _skip(self, scanned: Tensor, x: Tensor) -> Tensor:
        """float32 [T, channels] plus D times x [T, channels]; the first may be overwritten."""
        skip = self.dynamics.skip
        if self._add_skip is None:
            return scanned + skip * x
        self._add_skip(x, skip, scanned[..., None])
        return scanned

    def _selected(self, mixed: Tensor) -> list[Tensor]:
        """[T, channels] to the inputs of time steps, B and C."""
        parts = self.select(mixed, None).split(self._widths, dim=-1)
        if not self.norms:
            return list(parts)
        return [norm(part.contiguous()) for norm, part in zip(self.norms, parts, strict=True)]
