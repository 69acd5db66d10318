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
FOLDERS = (FOLDER, FOLDER / "encode")
FILES = sorted(p for f in FOLDERS for p in f.glob("*.yaml") if p.name != "kustomization.yaml")


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.stem}-{path.stem}")
def test_a_manifest_fits_its_schema(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_list_is_complete() -> None:
    for folder in FOLDERS:
        listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
        own = {path.name for path in FILES if path.parent == folder}
        assert set(listed["resources"]) - {".."} == own
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {image["name"] for image in listed["images"]} == {f"baton-{s}" for s in SERVICES}


def test_every_setting_exists() -> None:
    known = {variable for _, variable in variables(Settings)}
    for cls in config_classes().values():
        known |= {variable for _, variable in variables(cls)}
    text = "".join(path.read_text() for path in FILES)
    assert set(re.findall(r"\bBATON_[A-Z_]+", text)) <= known


def test_roles_are_apart_and_every_service_runs() -> None:
    run = {d["spec"]["template"]["spec"]["containers"][0]["args"][0] for d in DEPLOYMENTS.values()}
    assert run >= set(SERVICES)
    assert ROLES == {"prefill": "prefill", "decode": "decode", "encode": "encode"}


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
    assert {d["spec"]["scaleTargetRef"]["name"] for d in scalers} == set(ROLES)
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


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge as kubectl does it: of lists, entries of one name become one."""
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {key: merged(base[key], patch[key]) for key in base.keys() & patch.keys()}
        return {**base, **patch, **both}
    if not (isinstance(base, list) and base and isinstance(base[0], dict)):
        return patch
    key = "mountPath" if "mountPath" in base[0] else "name"
    entries = {entry[key]: entry for entry in base}
    for entry in patch:
        entries[entry[key]] = merged(entries.get(entry[key], {}), entry)
    return list(entries.values())


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_workers_on_gpus_have_one_each_and_keep_what_they_compile(name: str) -> None:
    overlay = yaml.safe_load((FOLDER / "gpu" / "kustomization.yaml").read_text())
    [patch] = overlay["patches"]
    assert re.fullmatch(patch["target"]["name"], name) and overlay["resources"] == [".."]
    [change] = documents(FOLDER / "gpu" / patch["path"])
    deployment = merged(DEPLOYMENTS[name], {**change, "metadata": {}})
    kubernetes_validate.validate(deployment, "1.31", strict=True)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["BATON_WORKER_DEVICE"], env["BATON_WORKER_ROLE"]) == ("cuda", name)
    assert {"/kernels", "/models", "/tmp"} <= {m["mountPath"] for m in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    recipe = (FOLDER.parent / "docker" / "Dockerfile").read_text()
    assert "TRITON_CACHE_DIR=/kernels" in recipe and "gcc libc6-dev" in recipe
