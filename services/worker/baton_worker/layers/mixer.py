"""What every mixer is: the half of a block in which tokens see each other."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.attention import AttentionSpec, Backend, choose
from baton_worker.attention.context_parallel import ContextParallelBackend, part
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import BuildContext


class Mixer(nn.Module):
    """Reads and writes the pages of its layer; the tokens that a step brings are planned once for
    all mixers with an equal `call`."""

    rope: spec.Rope | None = None
    call: Any
    """What `backend.plan` is told, and the plan's key in `PlanStep.plans`."""
    backend: Any
    """Plans a step, like an `attention.Backend`."""


class Attending(Mixer):
    """A mixer whose pages hold what each token has left, for an `attention.Backend` to read.

    Args:
        call: what is asked of the backend.
    """

    call: AttentionSpec
    backend: Backend

    def __init__(self, call: AttentionSpec, site: BuildContext) -> None:
        super().__init__()
        self.call = call
        if call.context is None:
            self.backend = choose(call)
        else:
            assert site.peers is not None, "keys are divided among ranks, and there is one"
            self.backend = ContextParallelBackend(choose(part(call)), call.context, site.peers)

    def slots(self, step: ForwardContext, pages: Tensor) -> Tensor:
        """int64 [T]: where new tokens go in `pages`, those of this layer."""
        if self.call.context is None:
            return step.slots
        slots: Tensor = step.plans[self.call].slots(pages)
        return slots


class Carrying(Mixer):
    """A mixer of bounded memory (see `spec.Recurrent`)."""

    what: str
    """The subject of a sentence."""

    def __init__(self, site: BuildContext) -> None:
        super().__init__()
        if site.codes is not None:
            raise ModelError(
                f"{self.what} does not read what pages keep as {site.codes}: serve this model with "
                "--kv-cache-dtype auto."
            )

    def check(self, step: ForwardContext) -> None:
        """Before a step runs.

        Raises:
            ModelError: the step holds texts that are to see both ways.
        """
        if step.texts:
            raise ModelError(f"{self.what} sees earlier tokens only: it cannot see both ways.")
