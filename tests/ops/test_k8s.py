"""The Kubernetes manifests match their schemas, and the settings and files they name exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from baton.settings import SERVICES, Settings, config_classes, variables
from tests.support.system.exported_metrics import exported

FOLDER = Path(__file__).parents[2] / "ops" / "k8s"
FILES = sorted(p for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml")


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


ALL = [document for path in FILES for document in documents(path)]
DEPLOYMENTS = {d["metadata"]["name"]: d for d in ALL if d["kind"] == "Deployment"}
ROLES = {
    name: entry["value"]
    for name, d in DEPLOYMENTS.items()
    for entry in d["spec"]["template"]["spec"]["containers"][0].get("env", [])
    if entry["name"] == "BATON_WORKER_ROLE"
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_manifest_fits_its_schema(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_list_is_complete() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert set(listed["resources"]) == {path.name for path in FILES}
    assert {image["name"] for image in listed["images"]} == {f"baton-{s}" for s in SERVICES}


def test_every_setting_exists() -> None:
    known = {variable for _, variable in variables(Settings)}
    for cls in config_classes().values():
        known |= {variable for _, variable in variables(cls)}
    text = "".join(path.read_text() for path in FILES)
    assert set(re.findall(r"\bBATON_[A-Z_]+", text)) <= known


def test_prefill_and_decode_are_apart_and_every_service_runs() -> None:
    run = {d["spec"]["template"]["spec"]["containers"][0]["args"][0] for d in DEPLOYMENTS.values()}
    assert run >= set(SERVICES)
    assert ROLES == {"prefill": "prefill", "decode": "decode"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_pod_is_confined(name: str) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", sorted(set(DEPLOYMENTS) - {"redis"}))
def test_every_service_has_probes_keys_and_time_to_drain(name: str) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"][-1] == container["name"]
    config = next(d for d in ALL if d["metadata"]["name"] == "baton" and d["kind"] == "ConfigMap")[
        "data"
    ]
    assert pod["terminationGracePeriodSeconds"] > int(config["BATON_SHUTDOWN_TIMEOUT"])
    keys = next(v for v in pod["volumes"] if v["name"] == "keys")["projected"]["sources"]
    assert keys[1]["secret"]["name"] == f"baton-{container['name']}-key"


def test_autoscalers_follow_metrics_that_exist() -> None:
    scalers = [d for d in ALL if d["kind"] == "HorizontalPodAutoscaler"]
    assert {d["spec"]["scaleTargetRef"]["name"] for d in scalers} == {"prefill", "decode"}
    asked = {m["external"]["metric"]["name"] for d in scalers for m in d["spec"]["metrics"]}
    assert asked <= exported()


def test_each_role_follows_its_own_wish_one_worker_per_pod() -> None:
    """An average of 1 of what the scheduler wants is that number of pods."""
    for scaler in (d for d in ALL if d["kind"] == "HorizontalPodAutoscaler"):
        [metric] = scaler["spec"]["metrics"]
        external, name = metric["external"], scaler["spec"]["scaleTargetRef"]["name"]
        assert external["metric"]["selector"]["matchLabels"] == {"role": ROLES[name]}
        assert external["target"] == {"type": "AverageValue", "averageValue": "1"}
        assert scaler["spec"]["maxReplicas"] >= DEPLOYMENTS[name]["spec"]["replicas"]


def test_the_rules_make_one_value_of_what_all_gateways_say() -> None:
    [rules] = [d for d in ALL if d["metadata"]["name"] == "baton-external-rules"]
    [rule] = yaml.safe_load(rules["data"]["config.yaml"])["externalRules"]
    assert set(re.findall(r"baton_\w+", rule["seriesQuery"])) <= exported()
    assert rule["metricsQuery"].startswith("max by (role)")
