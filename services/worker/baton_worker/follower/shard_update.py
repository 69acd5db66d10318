"""Other weights of a follower's shard, loaded on a thread beside those in use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from baton.errors import BatonError
from baton.logs import logger
from baton_worker.checkpoint.kept_weights import KeptWeights
from baton_worker.kv_cache import KVCache
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model

log = logger(__name__)


@dataclass(frozen=True)
class Shard:
    """A rank's part of a model, and what is made for it."""

    model: Model
    cache: KVCache
    targets: LoraTargets | None = None
    """The layers that take adapters, where adapters are served."""
    kept: KeptWeights | None = None
    """The memory of its weights, where it outlives the worker."""


class ShardUpdate:
    """At most one shard beside that in use.

    Args:
        load: loads a checkpoint and patches, with pages for a trial; on any thread.
    """

    def __init__(self, load: Callable[[Path, tuple[Path, ...]], Shard]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._work: Future[Shard] | None = None

    def begin(self, path: Path, patches: tuple[Path, ...]) -> None:
        """Load weights in place of those loaded before."""
        self._work = None  # First, to free that.
        self._work = self._thread.submit(self._load, path, patches)

    def loaded(self) -> Shard | None:
        """The shard, once it is loaded; None if it could not be."""
        if self._work is None:
            return None
        try:
            return self._work.result()
        except (BatonError, OSError, RuntimeError, MemoryError) as error:
            log.warning("the weights are not changed: %s", error)
            return None

    def drop(self) -> None:
        """Forget it."""
        self._work = None

    def close(self) -> None:
        """End the thread after what it does."""
        self._thread.shutdown(wait=False, cancel_futures=True)
