"""Model architectures: declarative specs, the layers that interpret them, checkpoint loading.

Importing this package costs no torch import; `load_model` and its types are fetched on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_worker.models.resolve import ARCHITECTURES, resolve

if TYPE_CHECKING:
    from baton_worker.models.decoder import Model
    from baton_worker.models.load import LoadedModel, load_model

__all__ = ["ARCHITECTURES", "LoadedModel", "Model", "load_model", "resolve"]


def __getattr__(name: str) -> Any:
    if name == "Model":
        from baton_worker.models.decoder import Model

        return Model
    if name in ("LoadedModel", "load_model"):
        from baton_worker.models import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
