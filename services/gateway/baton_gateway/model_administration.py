"""Commands of an operator to the workers of a model, and the wait for their effects."""

from __future__ import annotations

from collections.abc import Callable

from baton.protocol import (
    FinishWeightUpdate,
    InitWeightTransfer,
    LoadAdapter,
    Pause,
    Resume,
    Sleep,
    StartProfile,
    StartWeightUpdate,
    StopProfile,
    UnloadAdapter,
    UpdateWeights,
    WakeUp,
)
from baton_gateway.catalogue import Catalogue, ModelInfo
from baton_gateway.clients.connection import wait_until
from baton_gateway.clients.scheduler import SchedulerClient


class ModelAdministration:
    """Each command returns once every worker has run it and its effect is visible here.

    All raise `InvalidRequest` or `NotFound` if the scheduler refuses the command, and `Unavailable`
    if it does not reply in time.
    """

    def __init__(
        self,
        scheduler: SchedulerClient,
        catalogue: Catalogue,
        *,
        command_seconds: float,
        visible_seconds: float,
    ) -> None:
        """`command_seconds` bounds a command, `visible_seconds` the wait for its effect."""
        self._scheduler, self._catalogue = scheduler, catalogue
        self._command_seconds, self._visible_seconds = command_seconds, visible_seconds

    async def reset_cache(self) -> int:
        """Empty the prefix cache of all models. Returns the number of pages that it held."""
        return await self._scheduler.reset_cache(max(1.0, self._visible_seconds))

    async def change_state(self, model: str, action: Pause | Resume | Sleep | WakeUp) -> None:
        """Pause or resume a model, let it sleep or wake it."""
        await self._scheduler.administer(model, action, self._command_seconds)
        if isinstance(action, WakeUp) and action.tags == ("weights",):
            return  # A sleeping model with only its weights still sleeps.
        state = "paused" if isinstance(action, Pause | Resume) else "asleep"
        expected = isinstance(action, Pause | Sleep)
        await self._wait_visible(model, lambda model_info: getattr(model_info, state) == expected)

    async def profile(self, model: str, action: StartProfile | StopProfile) -> None:
        """Start or stop profiling on all workers of a model."""
        await self._scheduler.administer(model, action, self._command_seconds)

    async def change_weights(
        self,
        model: str,
        action: InitWeightTransfer | StartWeightUpdate | UpdateWeights | FinishWeightUpdate,
    ) -> None:
        """Run a step of a weight update."""
        await self._scheduler.administer(model, action, self._command_seconds)
        if not isinstance(action, FinishWeightUpdate) or not action.label:
            return
        await self._wait_visible(
            model, lambda model_info: model_info.weight_version == action.label
        )

    async def load_adapter(self, model: str, action: LoadAdapter) -> None:
        """Load an adapter on every worker of a model."""
        reply = await self._scheduler.administer(model, action, self._command_seconds)
        await self._wait_visible(action.name, lambda model_info: model_info.adapter == reply.digest)

    async def unload_adapter(self, model: str, action: UnloadAdapter) -> None:
        """Unload an adapter."""
        await self._scheduler.administer(model, action, self._command_seconds)
        await wait_until(lambda: action.name not in self._catalogue.names, self._visible_seconds)

    async def _wait_visible(self, name: str, holds: Callable[[ModelInfo], bool]) -> None:
        """Wait until the catalogue has a name for which `holds` is true, or the time limit."""

        def is_visible() -> bool:
            model_info = self._catalogue.get(name)
            return model_info is not None and holds(model_info)

        await wait_until(is_visible, self._visible_seconds)
