"""Experts of a layer that may change their rank and have replicas on several."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from baton_worker.distributed.eplb.placement import Held
from baton_worker.distributed.eplb.replica_routing import ReplicaTable, plan_visits
from baton_worker.distributed.expert_parallel import ExchangedExperts
from baton_worker.distributed.step_sync import StepSync
from baton_worker.kernels.moe.store import ExpertStore
from baton_worker.layers.moe.moe import Experts
from baton_worker.layers.moe.routers.base import Routing


class BalancedExperts(ExchangedExperts):
    """Experts whose visits are distributed over replicas.

    A rank returns the result of each visit to the rank of its token, which adds them up in the
    order of the token's experts, as one process does. Sums of a rank's visits would depend on which
    experts are together: a rearrangement could change bits.
    """

    def __init__(self, experts: Experts, slots: int, hidden: int, lockstep: StepSync) -> None:
        super().__init__(experts, slots, hidden, lockstep)
        self.device = experts.like.device
        self.use(experts.held)
        self.watch: Callable[[Tensor], None] | None = None
        """Called with the experts of all ranks' tokens, int64 [T, slots]."""

    def use(self, held: Held) -> None:
        """From now on the slots of ranks have these experts."""
        self.held = held
        self._replicas = ReplicaTable(held, self.device)

    @property
    def num_experts(self) -> int:
        """Experts of the layer, each of them once."""
        return len({expert for some in self.held for expert in some})

    @property
    def store(self) -> ExpertStore:
        """The weights of this rank's slots."""
        return self.experts.store

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert's weights as floats, equal on all ranks."""
        return self.experts.expert_bytes

    def _results(self, x: Tensor, routing: Routing) -> Tensor:
        if self.watch is not None:
            self.watch(routing.experts)
        rank, counts = self._lockstep.ranks.rank, self._lockstep.counts
        width = routing.experts.shape[1]
        slots = self._replicas.slots(routing.experts.flatten()).view(-1, width)
        plan = plan_visits(slots, self._replicas.slots_per_rank, counts, rank)
        weights = routing.weights.flatten()[plan.local]
        computed = self.experts.visits(x[plan.local // width], plan.slots, weights)
        first, count = sum(counts[:rank]), counts[rank]
        rows = computed.new_zeros(count * width, computed.shape[1])
        rows[plan.returned] = self._lockstep.deliver(computed, plan.counts)
        mine = Routing(*(part.narrow(0, first, count) for part in routing))
        received = x.narrow(0, first, count)
        results = torch.unflatten(rows, 0, (count, width))
        return self.experts.combined(results, received, mine)
