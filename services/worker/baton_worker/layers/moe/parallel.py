"""A feed-forward and a mixture of experts side by side: see `spec.ParallelMoe`."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.mlp import Glu
from baton_worker.layers.moe.moe import Moe
from baton_worker.layers.moe.shortcut import ShortcutMoe
from baton_worker.layers.norm import norm


class NormedExperts(Moe):
    """Experts and a router that read one stream, each through a norm of its own."""

    def __init__(self, settings: spec.ParallelMoe, hidden: int, context: BuildContext) -> None:
        super().__init__(settings.branch, hidden, context)
        self.norm = norm(settings.norm, hidden, "experts_norm", context)
        self.router_norm = norm(settings.norm, hidden, "router_norm", context)
        self._scale = hidden**-0.5

    def forward(self, x: Tensor, residual: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """See `Moe.forward`; x is not normed."""
        routing = self.router(self.router_norm(x) * self._scale, mask)
        out: Tensor = self.experts(self.norm(x), routing)
        return out if residual is None else residual + out


class ParallelMoe(ShortcutMoe):
    """Both halves, each normed, added up."""

    def __init__(self, settings: spec.ParallelMoe, hidden: int, context: BuildContext) -> None:
        nn.Module.__init__(self)
        self.dense = Glu(settings.dense, hidden, context)
        self.branch = NormedExperts(settings, hidden, context)
        self.dense_norm = norm(settings.norm, hidden, "dense_post_norm", context)
        self.experts_norm = norm(settings.norm, hidden, "experts_post_norm", context)

    def forward(self, x: Tensor, stream: Tensor | None) -> Tensor:
        """The input of the feed-forward and that of the experts, which is not normed, [T, hidden]
        each, to the same shape; the stream is not added."""
        dense = self.dense_norm(self.dense(x, None))
        return self.experts_norm.plus(self.branch(stream, None), dense)
