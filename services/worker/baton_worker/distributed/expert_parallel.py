"""Expert parallelism: wraps the experts of one rank so that they serve the tokens of all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker.attention import AttentionBatch
from baton_worker.distributed.step_sync import StepSync
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.layer import Bare
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.layers.moe.moe import Experts, Moe
from baton_worker.layers.moe.routers.base import Routing
from baton_worker.models.decoder import Model


class ExchangedExperts(Bare):
    """Experts distributed over ranks, for tokens distributed over ranks.

    While tokens are in transit, a rank computes its shared experts (`Moe`).

    Args:
        experts: the local experts.
        slots: experts per token.
        hidden: channels of a token.
        lockstep: step synchronization of the ranks.
    """

    def __init__(self, experts: Experts, slots: int, hidden: int, lockstep: StepSync) -> None:
        super().__init__()
        self.experts, self._lockstep = experts, lockstep
        self._slots, self._hidden = slots, hidden

    def begin(self, x: Tensor, routing: Routing) -> Callable[[], Tensor]:
        """See `Experts.begin`: for this rank's tokens, possibly none."""
        assert routing.experts.shape[1] == self._slots, "rows of all ranks are of one width"
        coming = self._lockstep.begin_gather(_packed(x, routing))

        def ended() -> Tensor:
            return self._results(*self._unpacked(coming(), x.dtype))

        return ended

    def _results(self, x: Tensor, routing: Routing) -> Tensor:
        """The tokens of all ranks [T, hidden] to what this rank's own get from all experts."""
        return self._lockstep.scatter(self.experts(x, routing))

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """`begin`, and wait for its result."""
        return self.begin(x, routing)()

    def run_dummy_step(self, dtype: torch.dtype, device: torch.device) -> None:
        """Run the local experts in a step in which this rank has no tokens."""
        none = torch.empty((0, self._slots), device=device)
        x = torch.empty((0, self._hidden), dtype=dtype, device=device)
        self(x, Routing(none.long(), none))

    def _unpacked(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Routing]:
        wide = 4 * self._slots
        parts = [wide, wide, rows.shape[1] - 2 * wide]
        weights, experts, x = torch.split(rows, parts, dim=1)
        routing = Routing(_typed(experts, torch.int32).long(), _typed(weights, torch.float32))
        return _typed(x, dtype), routing


def _packed(x: Tensor, routing: Routing) -> Tensor:
    """Pack each token's weights, experts and channels into one row, uint8 [T, n]."""
    parts = (routing.weights, routing.experts.int(), x)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def _typed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.clone(memory_format=torch.contiguous_format).view(dtype)


class LockstepModel:
    """A model whose forward passes are synchronized over all ranks."""

    def __init__(self, model: Model, lockstep: StepSync) -> None:
        self._model, self._lockstep = model, lockstep
        self._exchanged = [m for m in model.modules() if isinstance(m, ExchangedExperts)]
        self.dtype, self.logits = model.dtype, model.logits

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        """See `models.decoder.Model.forward`."""
        self._lockstep.agree(len(tokens))
        return self._model.forward(tokens, positions, batch, cache, texts, media)

    __call__ = forward

    @torch.inference_mode()
    def run_dummy_step(self, device: torch.device) -> None:
        """Join a step without tokens: only experts run, no attention and no pages."""
        for exchanged in self._exchanged:
            exchanged.run_dummy_step(self.dtype, device)
            self._model.progress += 1


def exchange(
    model: Model,
    hidden: int,
    lockstep: StepSync,
    kind: type[ExchangedExperts] = ExchangedExperts,
) -> None:
    """Wrap a model with a share of the experts so that it computes the full model.

    Raises:
        SettingsError: the number of experts per token depends on the other tokens of its rank.
    """
    for module in list(model.modules()):
        if isinstance(module, Moe):
            module.register_module("experts", _exchanged(module, hidden, lockstep, kind))
    # Every rank takes part in every layer of a step, but not every rank computes logits.
    model.alone = False


def _exchanged(
    moe: Moe, hidden: int, lockstep: StepSync, kind: type[ExchangedExperts]
) -> ExchangedExperts:
    if moe.router.together:
        raise SettingsError(
            "--router expert_choice: a token's experts would depend on its rank's others. "
            "Leave out --data-parallel-size or --enable-expert-parallel."
        )
    return kind(moe.experts, moe.router.settings.top_k, hidden, lockstep)
