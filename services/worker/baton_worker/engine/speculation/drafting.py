"""Builds the proposer of an engine, and measures the costs of its steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from baton.logs import logger
from baton.protocol import Plan, Result
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.batch.draft_tokens import NO_DRAFTS, DraftOptions
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.speculation import step_timing
from baton_worker.platform.cpu_threads import with_threads
from baton_worker.speculative import PROPOSERS
from baton_worker.speculative.proposer import Proposer, ProposerContext
from baton_worker.speculative.step_costs import StepCosts

log = logger(__name__)


class Drafting:
    """The proposer of one model, if speculation is on, and the step costs that it goes by."""

    def __init__(
        self, loaded: LoadedModel, resolved: EngineConfig, step_costs: StepCosts | None = None
    ) -> None:
        self._resolved, self.step_costs = resolved, step_costs
        self._proposer = _proposer(loaded, resolved)

    def options(self) -> DraftOptions:
        """How the sequences of a batch speculate."""
        if (config := self._resolved.speculative) is None:
            return NO_DRAFTS
        return DraftOptions(
            self._proposer, config.num_speculative_tokens, self.step_costs, config.tree
        )

    def measure(self, step: Callable[[Plan], Result]) -> None:
        """Measure step costs by running plans on a batch with `step_timing.OPTIONS`."""
        threads = self._resolved.build.threads
        seconds = with_threads(threads, partial(step_timing.measure, step, self._resolved))
        if len(seconds) > 1:
            self.step_costs = StepCosts(seconds)
            log.info("steps take with %d threads, by new tokens: %s", threads, self.step_costs)


def _proposer(loaded: LoadedModel, resolved: EngineConfig) -> Proposer | None:
    if resolved.speculative is None:
        return None
    context = ProposerContext(
        resolved.speculative,
        loaded,
        resolved.build,
        max_num_seqs=resolved.max_num_seqs,
        max_model_len=resolved.max_model_len,
        page_size=resolved.page_size,
        num_pages=resolved.num_pages,
        graphs=resolved.graphs,
    )
    proposer: Proposer = PROPOSERS.load(resolved.speculative.method)(context)
    return proposer
