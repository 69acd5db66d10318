"""Sparse latent attention over indexer-selected KV (DeepSeek-V3.2, arXiv:2512.02556)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.kv_pages import scatter
from baton_worker.layers.attention.indexer import Indexer
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.attention.sparse_plan import Chosen, Plan
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.rope.rope import Angles


class SparseLatentAttention(LatentAttention):
    """Latent attention in which late tokens attend to the `top_k` selected KV entries.

    The index key is stored behind the latent in the same page; both are written at once:

        cache, one token   [ c: kv_rank | rotated key: rope_dim | key of the index: dim ]
    """

    def __init__(
        self, settings: spec.SparseLatentAttention, hidden: int, context: BuildContext
    ) -> None:
        super().__init__(settings, hidden, context)
        self.backend = Chosen(self.backend)
        self.indexer = Indexer(settings, hidden, context) if settings.indexer else None

    def _heads(self, x: Tensor, low: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        return super()._heads(x, low, step, pages[..., : self._settings.width])

    def _attend(
        self, query: Tensor, x: Tensor, low: Tensor, step: ForwardContext, pages: Tensor
    ) -> Tensor:
        width, plan = self._settings.width, step.plans[self.call]
        if self.indexer is not None:
            keys = self.indexer.keys(x, self._angles(step))
            scatter(keys[:, None, None], step.slots, pages[..., width : width + keys.shape[1]])
        if plan.late is not None:
            plan = replace(plan, chosen=self._choose(plan, x, low, step, pages))
        return self.backend.forward(plan, query, pages[..., :width])

    def _choose(
        self, plan: Plan, x: Tensor, low: Tensor, step: ForwardContext, pages: Tensor
    ) -> Tensor:
        """KV slots of late tokens: selected here, or by the last layer with an indexer."""
        if self.indexer is not None:
            assert plan.late is not None
            rows, angles = pages.view(-1, pages.shape[-1]), self._angles(step)
            step.chosen[:] = [self.indexer(x, low, angles, plan.late, rows)]
        return step.chosen[-1]

    def _angles(self, step: ForwardContext) -> Angles:
        rope = self._settings.rope
        assert rope is not None, "an index knows positions"
        return step.angles[rope]
