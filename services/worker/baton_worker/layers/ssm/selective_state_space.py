"""Heads of Mamba-2 whose B, C and time steps are selected by the convolved inputs."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.recurrent.convolution import Places, put
from baton_worker.kernels.recurrent.ssm_states import CpuStates, Shape, Snapshots, choose
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.invariant import gated_silu
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.norm import norm
from baton_worker.layers.ssm.mamba2 import Rates
from baton_worker.layers.ssm.page_segments import Segments, splitter
from baton_worker.layers.ssm.short_conv import Taps

_ANY_STEP = (0.0, float("inf"))


class SelectiveStateSpace(Carrying):
    """The mixer of PLaMo 2 (arXiv:2509.04897): the state of `layers.ssm.mamba2` with one
    group of heads, and B, C and dt from the convolved inputs. The page row of a token:

        | x before the convolution | x after it | B | dt before its softplus |
    """

    what = "A state space"

    def __init__(
        self, settings: spec.SelectiveStateSpace, hidden: int, context: BuildContext
    ) -> None:
        super().__init__(context)
        refused = CpuStates.refuses(context.dtype, context.device)
        self.call = self.backend = splitter(context, refused, settings.taps)
        self.settings, width = settings, settings.width
        self.project = Linear(hidden, {"ssm_gate": width, "ssm_x": width}, context)
        form = (settings.taps, False, context, Places(0, at=width), "silu")
        self.taps = Taps({"ssm_conv_x": width}, *form)
        self._widths = (settings.state_size, settings.state_size, settings.step_rank)
        self.select: Bare = Linear(width, {"ssm_select": sum(self._widths)}, context)
        self.norms = nn.ModuleList(
            norm(settings.norm, size, f"ssm_{role}_norm", context)
            for size, role in zip(self._widths, ("write", "read", "step"), strict=True)
        )
        self.step = Linear(settings.step_rank, {"ssm_step": settings.num_heads}, context)
        self.rates = Rates(settings, context)
        self.output = Linear(width, {"ssm_output": hidden}, context)
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
        gate, inputs = self.project(x).chunk(2, dim=-1)
        mixed = self.taps(inputs, step.slots, segments.earlier, pages.tokens)
        write, read, narrow = self._selected(mixed)
        kept = pages.tokens[..., 2 * self.settings.width :]
        put(kept, step.slots, write, self.step(narrow))
        fading = self.rates.fading(segments, pages, _ANY_STEP)
        attended = segments.run(self._kernel, pages, read[:, None], fading)
        scanned = self.rates.skipped(attended, mixed)
        out: Tensor = self.output(gated_silu(scanned, gate), residual)
        return out

    def _selected(self, mixed: Tensor) -> list[Tensor]:
        """[T, width] to B, C and the inputs of time steps, normed."""
        parts = self.select(mixed, None).split(self._widths, dim=-1)
        return [norm(part.contiguous()) for norm, part in zip(self.norms, parts, strict=True)]


def _shape(settings: spec.SelectiveStateSpace) -> Shape:
    """The layout of a token's page row, with B as keys and x as values."""
    width = settings.width
    return Shape(settings.num_heads, 1, settings.state_size, settings.head_dim, 2 * width, width)
