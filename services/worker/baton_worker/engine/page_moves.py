"""Page moves before the first step of a plan: swaps to and from host memory, copies."""

from __future__ import annotations

import time

from baton.protocol import Plan
from baton.protocol.token_columns import unpack
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.nan_quarantine import NanQuarantine
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages


class PageMoves:
    """Swaps and copies of pages.

    Args:
        cache: cache of the pages.
        host: pages in host memory; None without a host cache.
        quarantine: is notified of copies.
        page_size: tokens per page.
    """

    def __init__(
        self, cache: KVCache, host: HostPages | None, quarantine: NanQuarantine, page_size: int
    ) -> None:
        self._cache, self._host, self._quarantine = cache, host, quarantine
        self._page_size = page_size

    def apply(self, plan: Plan) -> float:
        """Swap and copy the pages of a plan. Returns the seconds spent on swaps.

        Raises:
            PlanError: it names pages that do not exist.
        """
        seconds = self._swap(plan) if plan.swap_out or plan.swap_in else 0.0
        self._copy(plan)
        return seconds

    def _swap(self, plan: Plan) -> float:
        """Swap pages out, then in."""
        begin = time.perf_counter()
        out, back = unpack(plan.swap_out, "I").tolist(), unpack(plan.swap_in, "I").tolist()
        host = self._host
        if host is None or len(out) % 2 or len(back) % 2:
            raise PlanError("A plan swaps pages, but not pairwise or not of this worker.")
        if max([*out[::2], *back[1::2]]) >= self._cache.num_pages:
            raise PlanError(f"A plan swaps pages that are not among {self._cache.num_pages}.")
        if max([*out[1::2], *back[::2]]) >= host.num_pages:
            raise PlanError(f"A plan swaps host pages that are not among {host.num_pages}.")
        if out:
            host.store(out[::2], out[1::2])
        if back:
            host.load(back[::2], back[1::2])
        return time.perf_counter() - begin

    def _copy(self, plan: Plan) -> None:
        sources, targets = unpack(plan.copy_from, "I"), unpack(plan.copy_to, "I")
        if len(sources) != len(targets):
            raise PlanError("The copy columns of a plan disagree in length.")
        if sources:
            if max(*sources, *targets) >= self._cache.num_pages:
                raise PlanError(f"A plan copies pages that are not among {self._cache.num_pages}.")
            self._cache.copy(sources.tolist(), targets.tolist())
            for new in plan.new_sequences:
                if new.num_computed % self._page_size:
                    self._quarantine.copied(new.slot, new.num_computed)
