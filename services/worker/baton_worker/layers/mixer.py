"""Base classes of mixers: the half of a block that mixes tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.attention import AttentionSpec, Backend
from baton_worker.attention.context_parallel import ContextParallelBackend, part
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext


class Mixer(nn.Module):
    """Reads and writes its layer's pages. A step is planned once for all mixers with an equal
    `call`."""

    rope: spec.Rope | None = None
    call: Any
    """The argument of `backend.plan` and the dictionary key in `ForwardContext.plans`."""
    backend: Any
    """Plans a step, like an `attention.Backend`."""


class Attending(Mixer):
    """A mixer that reads KV pages through an `attention.Backend`.

    Args:
        call: the required attention.
    """

    call: AttentionSpec
    backend: Backend

    def __init__(self, call: AttentionSpec, context: BuildContext) -> None:
        super().__init__()
        self.call = call
        if call.context is None:
            self.backend = context.attention.select(call)
        else:
            assert context.peers is not None, "KV is divided among ranks, and there is one"
            if call.spans:
                raise ModelError(
                    "The image tokens of this model see one another in both directions, which "
                    "--decode-context-parallel-size does not support: leave it at 1."
                )
            backend = context.attention.select(part(call))
            self.backend = ContextParallelBackend(backend, call.context, context.peers)

    def slots(self, step: ForwardContext, pages: Tensor) -> Tensor:
        """int64 [T]: slot mapping of new tokens in this layer's `pages`."""
        if self.call.context is None:
            return step.slots
        slots: Tensor = step.plans[self.call].slots(pages)
        return slots


class Carrying(Mixer):
    """A mixer with a state of fixed size (see `spec.Recurrent`)."""

    what: str
    """The mixer's name, as the subject of error messages."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        if context.codes is not None:
            raise ModelError(
                f"{self.what} does not read what pages keep as {context.codes}: serve this model "
                "with --kv-cache-dtype auto."
            )

    def check(self, step: ForwardContext) -> None:
        """Check a step before it runs.

        Raises:
            ModelError: the step has texts with bidirectional attention.
        """
        if step.texts:
            raise ModelError(f"{self.what} sees earlier tokens only: it cannot see both ways.")
