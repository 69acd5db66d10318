"""Loads adapters when a request first names them, from a folder of PEFT folders.

"model": "sql" --> not served --> FOLDER/sql/adapter_config.json --> loaded on every worker
                       | no such folder
                       v
                      404
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from baton.checkpoint.json_file import read_json
from baton.errors import ModelError
from baton.logs import logger
from baton.protocol import LoadAdapter
from baton_gateway.catalogue import Catalogue

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Names of folders; never a path."""
_CONFIG = "adapter_config.json"

log = logger(__name__)


class AdapterResolver:
    """Finds adapters by their names.

    Args:
        folder: contains one PEFT folder per name; None disables loading on demand.
        catalogue: what is served.
        load: loads an adapter on every worker of a model; raises `BatonError`.
    """

    def __init__(
        self,
        folder: Path | None,
        catalogue: Catalogue,
        load: Callable[[str, LoadAdapter], Awaitable[None]],
    ) -> None:
        self._folder, self._catalogue, self._load = folder, catalogue, load
        self._locks: dict[str, asyncio.Lock] = {}
        """Locks of the names that are being loaded."""

    async def resolve(self, name: str | None) -> None:
        """Load an adapter if its name is not served and has a folder.

        Raises `BatonError` if it cannot be loaded.
        """
        if self._folder is None or name is None or name in self._catalogue.names:
            return
        path = self._folder / name
        model = self._base_of(path) if _NAME.fullmatch(name) else None
        if model is None:
            return
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if name not in self._catalogue.names:
                    log.info("loading the adapter %s on demand", name)
                    await self._load(model, LoadAdapter(name, str(path.absolute()), replace=True))
        finally:
            if not lock.locked():
                self._locks.pop(name, None)

    def _base_of(self, path: Path) -> str | None:
        """The served model that a PEFT folder adapts; None if there is none."""
        models = self._catalogue.models
        if not (path / _CONFIG).is_file():
            return None
        if len(models) == 1:
            return models[0]
        try:
            base = str(read_json(path / _CONFIG).get("base_model_name_or_path", ""))
        except ModelError as error:
            log.warning("%s", error.message)
            return None
        names = (base, PurePosixPath(base).name)
        return next((name for name in names if name in models), None)
