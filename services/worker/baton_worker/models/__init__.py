"""Model architectures: models assembled from the layers of a spec, and the families that define
specs.

Importing this package does not import torch; `Model` is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_worker.models.resolve import ARCHITECTURES, resolve

if TYPE_CHECKING:
    from baton_worker.models.decoder import Model

__all__ = ["ARCHITECTURES", "Model", "resolve"]


def __getattr__(name: str) -> Any:
    if name == "Model":
        from baton_worker.models.decoder import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
