"""The dashboard uses existing metrics and provisioned data sources."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.system.exported_metrics import (
    exported,
)

FOLDER = Path(__file__).parents[2] / "ops" / "observability"
DASHBOARD: dict[str, Any] = json.loads(
    (FOLDER / "grafana" / "dashboards" / "baton.json").read_text()
)


def test_every_panel_shows_metrics_that_exist() -> None:
    names = exported()
    for panel in DASHBOARD["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            asked = set(re.findall(r"\bbaton_\w+", target["expr"]))
            assert asked and asked <= names, f"{panel['title']}: {asked - names}"


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for p in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_data_sources_are_provisioned() -> None:
    sources = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/baton.yml").read_text())[
        "datasources"
    ]
    known = {source["uid"] for source in sources}
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} <= known


def test_every_file_is_mounted_by_the_overlay() -> None:
    text = (FOLDER.parent / "compose" / "observability.yml").read_text()
    for mounted in re.findall(r"\./(ops/observability/[\w./-]+):", text):
        assert (FOLDER.parents[1] / mounted).exists(), mounted


def test_a_collector_pipeline_names_what_it_has() -> None:
    config = yaml.safe_load((FOLDER / "collector/config.yaml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
