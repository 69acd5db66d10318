"""Other weights for an engine: loaded beside those in use, and tried out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from baton.errors import ModelError
from baton.protocol import WeightVersion
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.memory import free_bytes
from baton_worker.engine.startup import load_weights
from baton_worker.executor.executor import Executor
from baton_worker.layers.build_context import BuildContext

_TRIAL_PAGES = 256
"""Most pages of the cache of a trial."""


def files_of(path: Path, version: WeightVersion | None) -> tuple[Path, tuple[Path, ...]]:
    """The checkpoint of a version, and files with tensors that replace some of its own. `path` is
    the checkpoint that a worker starts with."""
    patches: list[Path] = []
    for source in version.sources if version is not None else ():
        if source.whole:
            path, patches = Path(source.path), []
        else:
            patches.append(Path(source.path))
    return path, tuple(patches)


def load_beside(
    config: Config,
    path: Path,
    build: BuildContext,
    team: Executor,
    used: LoadedModel,
    version: WeightVersion,
) -> LoadedModel:
    """Load a version of a model beside the weights in use, on all ranks.

    Raises:
        ModelError: there is no room, or it is another model.
    """
    free, needed = free_bytes(build.device), used.weight_bytes
    if build.device.type == "cpu":
        needed *= team.everyone.size  # They share the host's memory.
    if needed > free:
        raise ModelError(
            f"New weights take {needed >> 20} MiB beside those in use, and "
            f"{free >> 20} MiB are free. Give KV less (--gpu-memory-utilization, --max-kv-bytes)."
        )
    base, patches = files_of(path, version)
    team.load_beside(base, patches)
    parts = (team.ranks, None, team.pipeline)
    try:
        return _same_model(load_weights(config, base, build, *parts, patches), used)
    except BaseException:
        team.drop_beside()
        raise


def _same_model(loaded: LoadedModel, used: LoadedModel) -> LoadedModel:
    if loaded.spec != used.spec or loaded.recipe != used.recipe:
        raise ModelError(
            "The new weights are of another model than the one that is served: their config.json "
            "says so. Start a worker with it instead."
        )
    return loaded


def trial_config(resolved: EngineConfig) -> EngineConfig:
    """Sizes of an engine that runs a step or two of one sequence."""
    return replace(
        resolved,
        num_pages=min(resolved.num_pages, _TRIAL_PAGES),
        max_num_seqs=1,
        host_pages=0,
        graphs=None,
        eager="",
        speculative=None,
        stages=1,
        pages=None,
    )
