"""The system in containers, where a container engine answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.container_images import COMPILED, compile_kernels

ROOT = Path(__file__).parents[2]
PROJECT = f"baton-test-{os.getpid()}"
BASES = ("python:3.11-slim", "redis:7-alpine")
PATIENCE = 120.0
STORY = "Once upon a time there was a runner who carried a baton around the world. " * 20
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def docker(*arguments: str, timeout: float = 900, check: bool = True) -> str:
    """Run the docker command in the repository and return what it prints."""
    done = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or done.returncode == 0, f"docker {arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout


def compose(*arguments: str, timeout: float = 900, check: bool = True) -> str:
    return docker("compose", "--project-name", PROJECT, *arguments, timeout=timeout, check=check)


def no_compose() -> str:
    """Why files of compose cannot be read here; empty when they can."""
    if shutil.which("docker") is None:
        return "there is no docker command here"
    if not docker("compose", "version", timeout=30, check=False):
        return "there is no docker compose (version 2) here"
    return ""


def why_not() -> str:
    """Why containers cannot be tested here; empty when they can."""
    if reason := no_compose():
        return reason
    if not docker("info", "--format", "{{.ServerVersion}}", timeout=30, check=False).strip():
        return "no container engine answers (docker info)"
    for image in BASES:
        known = docker("image", "inspect", "--format", "{{.Id}}", image, check=False).strip()
        if not known and subprocess.run(["docker", "pull", "-q", image], check=False).returncode:
            return f"the image {image} is not here and no registry delivers it"
    return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class System:
    """The running project."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def chat(self) -> httpx.Response:
        model = httpx.get(f"{self.url}/v1/models", timeout=30).json()["data"][0]["id"]
        body = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=PATIENCE)

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """`docker inspect` of the running containers."""
        names = compose("ps", "--quiet", *([service] if service else [])).split()
        inspected: list[dict[str, Any]] = json.loads(docker("inspect", *names))
        return inspected

    def stream(self, max_tokens: int) -> Iterator[dict[str, Any]]:
        """The events of one long answer."""
        model = httpx.get(f"{self.url}/v1/models", timeout=30).json()["data"][0]["id"]
        body = {"model": model, "prompt": STORY, "max_tokens": max_tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
        url = f"{self.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    yield event

    def workers(self) -> list[dict[str, Any]]:
        page = httpx.get(f"{self.url}/fleet", timeout=30).json()
        found: list[dict[str, Any]] = page.get("workers", [])
        return found

    def ready_workers(self) -> list[str]:
        return [w["name"] for w in self.workers() if w["state"] == "ready"]


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BATON_MODEL", "BATON_COMPOSE_MODELS", "BATON_COMPOSE_HOST"):
            patch.delenv(name, raising=False)
        try:
            compile_kernels()
            patch.setenv("BATON_COMPOSE_COMPILED", str(COMPILED))
            compose("build", timeout=1500)
            port = free_port()  # Not before: for minutes others could take it.
            patch.setenv("BATON_COMPOSE_PORT", str(port))
            done = compose("up", "--wait", "--wait-timeout", "600", check=False)
            running = compose("ps", "--format", "{{.Service}} {{.Health}}", check=False)
            assert "gateway healthy" in running, done + compose("logs", "--tail=30", check=False)
            yield System(port)
        finally:
            compose("down", "--volumes", "--timeout", "5", check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overlays", ["gpu", "disaggregated", "disaggregated gpu-disaggregated", "observability"]
)
def test_overlays_fit_together(overlays: str) -> None:
    if reason := no_compose():
        pytest.skip(reason)
    files = ["docker-compose.yml", *(f"ops/compose/{name}.yml" for name in overlays.split())]
    chosen = [word for file in files for word in ("-f", file)]
    services = json.loads(compose(*chosen, "config", "--format", "json"))["services"]
    workers = {"worker"} if "disaggregated" not in overlays else {"prefill", "decode"}
    assert services.keys() >= {"gateway", "scheduler", *workers}
    if "gpu" in overlays:
        for name in workers:
            [device] = services[name]["deploy"]["resources"]["reservations"]["devices"]
            assert device["driver"] == "nvidia" and len(device["device_ids"]) == 1
            assert services[name]["build"]["args"]["EXTRAS"] == ",cuda"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_chat_works(system: System) -> None:
    answer = system.chat()
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_every_container_is_confined(system: System) -> None:
    found = system.containers()
    services = {c["Config"]["Labels"]["com.docker.compose.service"] for c in found}
    assert services == {"gateway", "tokenizer", "mm-preprocess", "scheduler", "worker", "redis"}
    for container in found:
        name, host = container["Name"], container["HostConfig"]
        assert container["State"]["Health"]["Status"] == "healthy", name
        assert container["Config"]["User"].partition(":")[0] not in {"", "0", "root"}, name
        assert host["ReadonlyRootfs"] is True, name
        assert host["CapDrop"] == ["ALL"] and not host["CapAdd"], name
        assert "no-new-privileges:true" in host["SecurityOpt"], name
        assert host["Memory"] > 0 and host["PidsLimit"] > 0, name
        assert not host["Privileged"], name
        written = {
            m["Destination"] for m in container["Mounts"] if m["RW"] and m["Type"] != "tmpfs"
        }
        service = container["Config"]["Labels"]["com.docker.compose.service"]
        assert written == ({"/state"} if service == "gateway" else set()), name


@pytest.mark.slow
def test_only_the_gateway_is_published(system: System) -> None:
    published = {
        c["Config"]["Labels"]["com.docker.compose.service"]
        for c in system.containers()
        if any(c["NetworkSettings"]["Ports"].values())
    }
    assert published == {"gateway"}


@pytest.mark.slow
def test_the_fabric_reaches_nothing_outside(system: System) -> None:
    code = "import socket; socket.create_connection(('1.1.1.1', 443), timeout=3)"
    done = compose("exec", "-T", "worker", "python", "-c", code + "; print('out')", check=False)
    assert "out" not in done


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_worker_finds_the_others_by_itself(system: System) -> None:
    compose("up", "--wait", "--no-recreate", "--scale", "worker=2")
    deadline = time.monotonic() + PATIENCE
    while len(system.ready_workers()) < 2:
        assert time.monotonic() < deadline, compose("logs", "--tail=30", check=False)
        time.sleep(0.5)
    assert system.chat().status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_worker_container_comes_back(system: System) -> None:
    [first, *_] = system.containers("worker")
    docker("exec", first["Id"], "python", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")
    deadline = time.monotonic() + PATIENCE
    while docker("inspect", "-f", "{{.RestartCount}}", first["Id"]).strip() != "1":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    while system.chat().status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_in_flight_notices_that_redis_restarts(system: System) -> None:
    def tokens(events: list[dict[str, Any]]) -> list[int]:
        return [token for event in events for token in event["choices"][0]["token_ids"]]

    undisturbed = tokens(list(system.stream(max_tokens=300)))
    streamed = system.stream(max_tokens=300)
    events = [next(streamed)]
    compose("restart", "--timeout", "1", "redis")
    events += streamed
    assert tokens(events) == undisturbed and len(undisturbed) == 300
    assert system.chat().status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_prefill_and_decode_scale_apart_and_a_killed_decode_worker_costs_no_token(
    system: System,
) -> None:
    overlay = ("-f", "docker-compose.yml", "-f", "ops/compose/disaggregated.yml")
    compose(*overlay, "up", "--wait", "--scale", "prefill=1", "--scale", "decode=2")
    compose("rm", "--stop", "--force", "worker")
    until(lambda: roles(system) == ["decode"] * 2 + ["prefill"])
    streamed = system.stream(max_tokens=600)
    choices = [next(streamed)["choices"][0]]
    name = decoding(system)
    [victim] = [c for c in system.containers() if c["Config"]["Hostname"] in name]
    docker("kill", victim["Id"])
    choices += [event["choices"][0] for event in streamed]
    assert sum(len(choice["token_ids"]) for choice in choices) == 600
    assert choices[-1]["finish_reason"] == "length"
    until(lambda: roles(system) == ["decode", "prefill"])
    assert system.chat().status_code == 200


def decoding(system: System) -> str:
    """The first decode worker that is seen to run something."""
    busy: list[str] = []

    def looks() -> bool:
        workers = [w for w in system.workers() if w["role"] == "decode"]
        busy.extend(w["name"] for w in workers if w["running"])
        return bool(busy)

    until(looks)
    return busy[0]


def roles(system: System) -> list[str]:
    return sorted(w["role"] for w in system.workers() if w["state"] == "ready")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, compose("logs", "--tail=30", check=False)
        time.sleep(0.2)


@pytest.mark.slow
def test_the_engine_forgets_everything(system: System) -> None:
    """Last: `down --volumes` leaves no container, network or volume of the project."""
    compose("down", "--volumes", "--timeout", "10")
    label = f"label=com.docker.compose.project={PROJECT}"
    for kind in ("container", "network", "volume"):
        assert not docker(kind, "ls", "--quiet", "--filter", label).strip()
