"""The adapters that a worker has in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from baton.errors import SettingsError
from baton.logs import logger
from baton.protocol import AdapterInfo
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.lora.adapter import Adapter, read_adapter
from baton_worker.lora.modules import LoraModule, lora_modules
from baton_worker.lora.targets import Announce, LoraTargets
from baton_worker.models.decoder import Model

log = logger(__name__)


def check(config: Config) -> None:
    """Check what does not need the model.

    Raises:
        SettingsError: adapters cannot be served with these settings.
    """
    if not config.enable_lora:
        if config.lora_modules:
            raise SettingsError("--lora-modules: add --enable-lora.")
        return
    lora_modules(config.lora_modules)
    if config.pipeline_parallel_size > 1:
        raise SettingsError(
            "--enable-lora with --pipeline-parallel-size: adapters are put into layers that the "
            "leader has, and it has those of the last stage. Leave one of them out, or use "
            "--tensor-parallel-size."
        )
    if config.data_parallel_size > 1 or config.enable_expert_parallel:
        raise SettingsError(
            "--enable-lora with --data-parallel-size or --enable-expert-parallel: adapters are not "
            "served where workers share experts. Leave one of them out; --workers adds workers "
            "that all have the adapters."
        )


def open_store(config: Config, loaded: LoadedModel, announce: Announce) -> AdapterStore | None:
    """Load the adapters that the settings name; None if none are served. `announce` puts each into
    the slots of other ranks.

    Raises:
        ModelError: one is not an adapter of this model.
        SettingsError: the model takes none, or they are too many.
    """
    if not config.enable_lora:
        return None
    if not isinstance(loaded.model, Model) or loaded.recipe is not None:
        raise SettingsError(
            "--enable-lora: adapters are served for models that Baton has a spec of and that "
            "generate text. Leave it out, or serve a checkpoint that the adapter is merged into."
        )
    targets = LoraTargets(loaded.model, loaded.spec, loaded.parts, announce)
    store = AdapterStore(targets, config.max_lora_rank, config.max_cpu_loras)
    store.load(lora_modules(config.lora_modules))
    return store


class AdapterStore:
    """Adapters by digest, and the names that they were loaded under.

    Args:
        targets: the layers that take them.
        max_rank: most rows of a product.
        capacity: most adapters in memory.
    """

    def __init__(self, targets: LoraTargets, max_rank: int, capacity: int) -> None:
        self.targets, self._max_rank, self._capacity = targets, max_rank, capacity
        self._adapters = dict[bytes, Adapter]()
        self._infos = dict[tuple[str, bytes], AdapterInfo]()

    def for_model(self, loaded: LoadedModel, announce: Announce) -> AdapterStore:
        """The same adapters, for a model of the same spec with other weights; see `open_store`."""
        assert isinstance(loaded.model, Model), "only these take adapters"
        targets = LoraTargets(loaded.model, loaded.spec, loaded.parts, announce)
        other = AdapterStore(targets, self._max_rank, self._capacity)
        other._adapters, other._infos = dict(self._adapters), dict(self._infos)
        return other

    def get(self, digest: bytes) -> Adapter | None:
        """An adapter by its digest; None if it is not in memory."""
        return self._adapters.get(digest)

    @property
    def capacity(self) -> int:
        """Most adapters in memory."""
        return self._capacity

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        """Reports of this worker's adapters, in loading order."""
        return tuple(self._infos.values())

    def load(self, modules: Sequence[LoraModule]) -> None:
        """Read the adapters that the operator names.

        Raises:
            ModelError: one is not an adapter of this model.
            SettingsError: they are too many.
        """
        for module in modules:
            self.add(module, self.read(module.path))
            log.info("adapter %s: %s", module.name, module.path)

    def read(self, path: str) -> Adapter:
        """Read an adapter without adding it; thread-safe.

        Raises:
            ModelError: it is not one of this model.
        """
        return read_adapter(Path(path), self.targets, self._max_rank)

    def add(self, module: LoraModule, adapter: Adapter) -> None:
        """Add an adapter under a name.

        Raises:
            SettingsError: there is no room for another one.
        """
        if adapter.digest not in self._adapters and len(self._adapters) >= self._capacity:
            raise SettingsError(
                f"There is no room for another adapter: --max-cpu-loras is {self._capacity}. Raise "
                "it, or unload one."
            )
        self._adapters[adapter.digest] = adapter
        key = module.name, adapter.digest
        self._infos.pop(key, None)  # The last one of a name counts.
        self._infos[key] = AdapterInfo(module.name, adapter.digest, module.path)

    def drop(self, digest: bytes) -> None:
        """Free an adapter that no sequence has."""
        self._adapters.pop(digest, None)
        self._infos = {key: info for key, info in self._infos.items() if key[1] != digest}
