"""Shortcut-connected mixture of experts: its output joins the residual stream later."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.mlp import Glu
from baton_worker.layers.moe.moe import Moe


class ShortcutMoe(nn.Module):
    """The dense half of a `spec.ShortcutMoe`; `models.block.Shortcut` runs its `branch`."""

    def __init__(self, settings: spec.ShortcutMoe, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self.dense = Glu(settings.dense, hidden, context)
        self.branch = Moe(settings.branch, hidden, context)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        out: Tensor = self.dense(x, residual)
        return out
