"""Adapters that are loaded when they are first asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from baton.protocol import AdapterInfo, LoadAdapter, ModelStats, TokenizerInfo
from baton_gateway.adapter_resolver import AdapterResolver
from baton_gateway.catalogue import Catalogue
from baton_gateway.config import Config
from tests.fakes.gateway_app import error_of, site

pytestmark = pytest.mark.row("F11.04", "F19.09")


def folder_of(root: Path, name: str, base: str = "") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return folder


def test_the_first_request_loads_it(tmp_path: Path) -> None:
    path = folder_of(tmp_path, "sql")
    folder_of(tmp_path, "hidden/inner")
    with site(allow_runtime_lora_updating=True, lora_resolver_cache_dir=tmp_path) as here:
        assert here.get("/v1/models/sql").status_code == 404, "nobody asks it anything"
        answers = [here.chat(model="sql") for _ in range(2)]
        assert {a.status_code for a in answers} == {200}
        assert {a.json()["model"] for a in answers} == {"sql"}
        scheduler = here.engine.scheduler
        assert scheduler.actions == [LoadAdapter("sql", str(path), replace=True)]
        assert {s.adapter for s in scheduler.submits} == {scheduler.adapters["sql"].digest}
        for name in ("none", "hidden", "hidden/inner", "../sql", ".", ".."):
            missing = here.chat(model=name)
            assert missing.status_code in (400, 404)
            assert error_of(missing)["code"] == "model_not_found"
        assert len(scheduler.actions) == 1
        scheduler.refusal = "It is of another model."
        folder_of(tmp_path, "other")
        refused = here.chat(model="other")
        assert refused.status_code == 400 and "another model" in error_of(refused)["message"]


async def test_of_several_models_the_config_says_which(tmp_path: Path) -> None:
    loaded: list[tuple[str, LoadAdapter]] = []

    async def load(model: str, action: LoadAdapter) -> None:
        loaded.append((model, action))
        await asyncio.sleep(0.01)
        info = AdapterInfo(action.name, b"digest")
        stats[1] = structs.replace(stats[1], adapters=(info,))

    stats = [ModelStats(name, 10, 10) for name in ("one", "two")]
    catalogue = Catalogue(lambda: stats, lambda: [TokenizerInfo(s.name, 10) for s in stats])
    resolver = AdapterResolver(tmp_path, catalogue, load)
    folder_of(tmp_path, "a", "org/two")
    folder_of(tmp_path, "b", "org/three")
    (folder_of(tmp_path, "c") / "adapter_config.json").write_text("{")
    await asyncio.gather(*(resolver.resolve("a") for _ in range(3)))
    for name in ("a", "b", "c", None):
        await resolver.resolve(name)
    assert not resolver._locks
    assert [(model, action.name) for model, action in loaded] == [("two", "a")]
    await AdapterResolver(None, catalogue, load).resolve("a")
    assert len(loaded) == 1


def test_it_needs_the_leave_of_the_operator(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--allow-runtime-lora-updating"):
        Config(lora_resolver_cache_dir=tmp_path)
