"""What is put around the experts of one rank so that they serve the tokens of all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from baton.errors import SettingsError
from baton_worker.attention import AttentionBatch
from baton_worker.distributed.step_sync import StepSync
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.layer import Bare
from baton_worker.layers.moe.moe import Experts, Moe
from baton_worker.layers.moe.routers.base import Routing
from baton_worker.models.decoder import Model


class ExchangedExperts(Bare):
    """Experts of which every rank has some, for tokens of which every rank has some.

    While these are on their way, a rank computes what its own tokens visit besides (`Moe`).

    Args:
        experts: those that are here.
        slots: experts that a token visits.
        hidden: channels of a token.
        lockstep: the ranks.
    """

    def __init__(self, experts: Experts, slots: int, hidden: int, lockstep: StepSync) -> None:
        super().__init__()
        self.experts, self._lockstep = experts, lockstep
        self._slots, self._hidden = slots, hidden

    def begin(self, x: Tensor, routing: Routing) -> Callable[[], Tensor]:
        """See `Experts.begin`: for this rank's tokens, which may be none."""
        assert routing.experts.shape[1] == self._slots, "rows of all ranks are of one width"
        coming = self._lockstep.begin_gather(_packed(x, routing))

        def ended() -> Tensor:
            return self._lockstep.scatter(self.experts(*self._unpacked(coming(), x.dtype)))

        return ended

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """`begin`, and the end of it."""
        return self.begin(x, routing)()

    def lend(self, dtype: torch.dtype, device: torch.device) -> None:
        """Run the experts in a step in which this rank has no token."""
        nobody = torch.empty((0, self._slots), device=device)
        x = torch.empty((0, self._hidden), dtype=dtype, device=device)
        self(x, Routing(nobody.long(), nobody))

    def _unpacked(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Routing]:
        wide = 4 * self._slots
        parts = [wide, wide, rows.shape[1] - 2 * wide]
        weights, experts, x = torch.split(rows, parts, dim=1)
        routing = Routing(_typed(experts, torch.int32).long(), _typed(weights, torch.float32))
        return _typed(x, dtype), routing


def _packed(x: Tensor, routing: Routing) -> Tensor:
    """A token's weights, experts and channels in one row of bytes, uint8 [T, n]."""
    parts = (routing.weights, routing.experts.int(), x)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def _typed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.clone(memory_format=torch.contiguous_format).view(dtype)


class LockstepModel:
    """A model whose every forward pass is one of all ranks."""

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
    ) -> Tensor:
        """See `models.decoder.Model.forward`."""
        self._lockstep.agree(len(tokens))
        return self._model.forward(tokens, positions, batch, cache, texts)

    __call__ = forward

    @torch.inference_mode()
    def lend(self, device: torch.device) -> None:
        """Take a step that others take, without a token: no attention, no pages, only experts."""
        for exchanged in self._exchanged:
            exchanged.lend(self.dtype, device)
            self._model.progress += 1


def exchange(model: Model, hidden: int, lockstep: StepSync) -> None:
    """Make a model with some of the experts answer as one that has them all.

    Raises:
        SettingsError: how many experts a token visits depends on the other tokens of its rank.
    """
    for module in list(model.modules()):
        if isinstance(module, Moe):
            module.register_module("experts", _exchanged(module, hidden, lockstep))
    # Every rank takes part in every layer of a step, and not every rank asks for logits.
    model.alone = False


def _exchanged(moe: Moe, hidden: int, lockstep: StepSync) -> nn.Module:
    if moe.router.together:
        raise SettingsError(
            "--router expert_choice: what a token gets would depend on who else is on its rank. "
            "Leave out --data-parallel-size or --enable-expert-parallel."
        )
    return ExchangedExperts(moe.experts, moe.router.settings.top_k, hidden, lockstep)
