"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.protocol import AdapterInfo, LoadAdapter, UnloadAdapter
from tests.fakes.gateway_app import Site, error_of, site
from tests.fakes.gateway_engine import MODEL

pytestmark = pytest.mark.row("F11.04", "F19.09")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def here() -> Iterator[Site]:
    with site(allow_runtime_lora_updating=True) as made:
        yield made


def test_they_are_routes_only_where_the_operator_says_so(shared_site: Site) -> None:
    for path in (LOAD, UNLOAD):
        refused = shared_site.post(path, {"lora_name": "a", "lora_path": "/a"})
        assert refused.status_code == 404
        assert "--allow-runtime-lora-updating" in error_of(refused)["message"]


def test_what_is_loaded_can_be_asked_for_and_unloaded(here: Site) -> None:
    body = {"lora_name": "sql", "lora_path": "/adapters/sql"}
    loaded = here.post(LOAD, body | {"load_inplace": True})
    assert (loaded.status_code, loaded.text) == (
        200,
        "Success: LoRA adapter 'sql' added successfully.",
    )
    scheduler = here.engine.scheduler
    assert scheduler.actions == [LoadAdapter("sql", "/adapters/sql", replace=True)]
    assert here.get("/v1/models/sql").json()["parent"] == MODEL
    answer = here.chat(model="sql").json()
    assert answer["model"] == "sql"
    assert {s.adapter for s in scheduler.submits} == {scheduler.adapters["sql"].digest}
    assert here.post(UNLOAD, {"lora_name": "sql"}).text.endswith("removed successfully.")
    assert scheduler.actions[-1] == UnloadAdapter("sql")
    assert here.chat(model="sql").status_code == 404
    assert here.post(UNLOAD, {"lora_name": "sql"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_path": "/a"}, "lora_name"),
        ({"lora_name": "a"}, "lora_path"),
        ({"lora_name": MODEL, "lora_path": "/a"}, "lora_name"),
        ({"lora_name": "a", "lora_path": ""}, "lora_path"),
        ({"lora_name": "a", "lora_path": "/a", "load_inplace": "yes"}, "load_inplace"),
    ],
)
def test_what_cannot_be_loaded_is_refused(here: Site, body: dict[str, object], param: str) -> None:
    refused = here.post(LOAD, body)
    assert refused.status_code == 400 and error_of(refused)["param"] == param


def test_what_the_workers_refuse_is_told(here: Site) -> None:
    here.engine.scheduler.refusal = "it is of another model"
    refused = here.post(LOAD, {"lora_name": "a", "lora_path": "/a"})
    assert (refused.status_code, error_of(refused)["message"]) == (400, "it is of another model")
    assert AdapterInfo("a", b"") not in here.engine.scheduler.adapters.values()
