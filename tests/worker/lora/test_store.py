"""The adapters that a worker has: what the settings name, and what they must not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from baton.errors import ModelError, SettingsError
from baton_worker.config import Config
from baton_worker.kernels.lora import LoraPair
from baton_worker.lora.modules import LoraModule
from baton_worker.lora.store import AdapterStore, check, open_store
from tests.support.worker.adapted_model import NAMES, Adapted


def config(adapted: Adapted, **fields: object) -> Config:
    modules = ",".join(f"{name}={path}" for name, path in adapted.folders.items())
    return Config(**{"enable_lora": True, "lora_modules": modules} | fields)  # type: ignore[arg-type]


def nobody(slot: int, pairs: Mapping[str, LoraPair]) -> None:
    """There are no other ranks."""


def test_what_the_settings_name_is_in_memory(adapted: Adapted) -> None:
    store = open_store(config(adapted), adapted.loaded, nobody)
    assert store is not None
    assert [info.name for info in store.infos] == [*NAMES]
    assert all(store.get(info.digest) is not None for info in store.infos)
    assert store.infos == adapted.store.infos and store.get(b"") is None
    assert open_store(config(adapted, enable_lora=False), adapted.loaded, nobody) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"enable_lora": False}, "add --enable-lora"),
        ({"tensor_parallel_size": 2, "enable_expert_parallel": True}, "share experts"),
        ({"data_parallel_size": 2}, "share experts"),
        ({"lora_modules": "a"}, "name=path"),
    ],
)
def test_settings_that_contradict_adapters_are_refused(
    adapted: Adapted, fields: dict[str, object], words: str
) -> None:
    check(config(adapted))
    with pytest.raises(SettingsError, match=words):
        check(config(adapted, **fields))


def test_adapters_that_are_too_many_or_too_wide_are_refused(adapted: Adapted) -> None:
    with pytest.raises(SettingsError, match="--max-cpu-loras is 2"):
        open_store(config(adapted, max_cpu_loras=2), adapted.loaded, nobody)
    with pytest.raises(ModelError, match="--max-lora-rank is 3"):
        open_store(config(adapted, max_lora_rank=3), adapted.loaded, nobody)
    store = AdapterStore(adapted.store.targets, 16, 8)
    with pytest.raises(ModelError, match="no adapter_config"):
        store.load([LoraModule("x", str(adapted.base))])
