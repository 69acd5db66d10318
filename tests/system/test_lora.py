"""`baton serve MODEL --enable-lora --lora-modules NAME=FOLDER`: adapters as names of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx
import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.targets import LoraTargets
from tests.support import tiny_models
from tests.support.served_system import PATIENCE, Served, until
from tests.support.system.running_system import complete, works
from tests.support.system.streams import frames, stream, text_of
from tests.support.worker.lora_folders import write_adapter

pytestmark = pytest.mark.slow
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1", "--worker.max-kv-bytes", "16777216")
NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, "hf", and adapters of it by name."""
    root, device = tmp_path_factory.mktemp("model"), torch.device("cpu")
    tiny_models.save_model(root / "hf", max_position_embeddings=2048)
    column = TokenAdapters(1, 1, device)
    loaded = load_model(root / "hf", BuildContext(device, torch.float32, adapters=column))
    shapes = LoraTargets(loaded.model, loaded.spec).shapes  # type: ignore[arg-type]
    made = {"hf": root / "hf"}
    for seed, name in enumerate(NAMES):
        made[name] = write_adapter(root / name, shapes, seed=seed, scale=0.2)
    return made


@pytest.fixture(scope="module")
def served(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    modules = (f"{name}={folders[name]}" for name in NAMES[:2])
    flags = (
        "--allow-runtime-lora-updating",
        "--enable-lora",
        "--lora-modules",
        *modules,
        "--max-loras",
        "2",
    )
    system = Served(tmp_path_factory.mktemp("lora"), folders["hf"], *flags, *EXACT)
    try:
        yield system.ready()
    finally:
        system.close()


@pytest.mark.row("F11.01", "F11.04")
def test_adapters_are_models_with_a_parent(served: Served) -> None:
    listed = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert {m["id"]: m["parent"] for m in listed} == {"hf": None, "one": "hf", "two": "hf"}
    answers = {name: complete(served.url, model=name).json() for name in ("hf", "one", "two")}
    assert all(answer["model"] == name for name, answer in answers.items())
    assert len({answer["choices"][0]["text"] for answer in answers.values()}) == 3
    missing = complete(served.url, model="three")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.row("F11.01", "F11.02")
def test_mixed_streams_go_on_after_the_loss_of_the_worker(served: Served) -> None:
    started = Semaphore(0)

    def text(name: str) -> str:
        events = stream(served.url, model=name, prompt="It was", max_tokens=300)
        first = next(events)
        started.release()
        return text_of([first, *events])

    names = ["hf", "one", "two", "one", "hf"]
    wanted = {name: text(name) for name in set(names)}
    assert len(set(wanted.values())) == 3
    started = Semaphore(0)
    with ThreadPoolExecutor() as pool:
        streams = [pool.submit(text, name) for name in names]
        assert all(started.acquire(timeout=PATIENCE) for _ in range(3)), "they run"
        os.kill(served.pids()["worker"], signal.SIGKILL)
        assert [s.result() for s in streams] == [wanted[name] for name in names]
    until(lambda: works(served.url), "the worker is back")


@pytest.mark.row("F11.01")
def test_a_durable_stream_keeps_its_adapter_when_the_gateway_dies(
    served: Served, folders: dict[str, Path]
) -> None:
    body = {"model": "one", "prompt": "It was", "max_tokens": 300, "stream": True}
    body |= {"temperature": 0, "ignore_eos": True}
    wanted = text_of(list(stream(served.url, **body)))

    def events(method: str, path: str, count: int, **how: Any) -> list[tuple[str, dict[str, Any]]]:
        with httpx.stream(method, f"{served.url}{path}", timeout=60, **how) as answer:
            assert answer.status_code == 200, answer.read()
            every = ((i, json.loads(d)) for i, d in frames(answer.iter_lines()) if d != "[DONE]")
            return list(islice(every, count))

    durable = {"X-Stream-Durable": "1"}
    seen = events("POST", "/v1/completions", 5, json=body, headers=durable)
    before = served.pids()["gateway"]
    os.kill(before, signal.SIGKILL)
    until(lambda: served.pids().get("gateway", before) != before, "the next gateway")
    until(lambda: works(served.url), "it serves")
    name = seen[0][0].rpartition(":")[0]
    seen += events("GET", f"/v1/streams/{name}", 20, headers={"Last-Event-ID": seen[-1][0]})
    last = {"Last-Event-ID": seen[-1][0]}
    os.kill(served.pids()["gateway"], signal.SIGKILL)
    until(lambda: works(served.url), "the gateway is back")
    again = str(folders["three"])
    changed = post(served, "load", lora_name="one", lora_path=again, load_inplace=True)
    assert changed.status_code == 200
    [_, refused] = [*seen, *events("GET", f"/v1/streams/{name}", 1000, headers=last)][-2:]
    assert refused[1]["error"]["code"] == "adapter_changed"
    back = post(served, "load", lora_name="one", lora_path=str(folders["one"]), load_inplace=True)
    assert back.status_code == 200
    seen += events("GET", f"/v1/streams/{name}", 1000, headers=last)
    assert text_of([event for _, event in seen]) == wanted


def post(served: Served, route: str, **body: object) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/{route}_lora_adapter", json=body, timeout=60)


@pytest.mark.row("F11.04", "F19.09")
def test_a_stream_runs_through_loads_and_unloads(served: Served, folders: dict[str, Path]) -> None:
    """A name that is loaded again with other weights shares nothing with what it meant before, and
    a stream that runs keeps what it began with."""

    def said(name: str) -> str:
        text: str = complete(served.url, model=name, max_tokens=20).json()["choices"][0]["text"]
        return text

    wanted = {name: said(name) for name in ("hf", "one", "two")}
    long = {"model": "one", "prompt": "It was", "max_tokens": 600}
    whole = text_of(list(stream(served.url, **long)))
    refused = post(served, "load", lora_name="one", lora_path=str(folders["three"]))
    assert refused.status_code == 400 and "already" in refused.json()["error"]["message"]
    with ThreadPoolExecutor() as pool:
        events = stream(served.url, **long)
        first_events = [next(events)]
        running = pool.submit(lambda: text_of(first_events + list(events)))
        path = str(folders["three"])
        answer = post(served, "load", lora_name="one", lora_path=path, load_inplace=True)
        assert answer.text == "Success: LoRA adapter 'one' added successfully."
        third = said("one")
        assert third not in wanted.values()
        for _ in range(4):
            assert post(served, "load", lora_name="more", lora_path=path).status_code == 200
            assert said("more") == third
            assert post(served, "unload", lora_name="more").status_code == 200
            assert complete(served.url, model="more").status_code == 404
        assert running.result() == whole
    os.kill(served.pids()["worker"], signal.SIGKILL)  # It comes back with what it was started with.
    until(lambda: works(served.url), "the worker is back")
    assert said("one") == third, "and has loaded again what was loaded meanwhile"
    back = post(served, "load", lora_name="one", lora_path=str(folders["one"]), load_inplace=True)
    assert back.status_code == 200 and {name: said(name) for name in wanted} == wanted
    for path, why in (("/nowhere", "adapter_config"), (str(folders["hf"]), "adapter_config")):
        broken = post(served, "load", lora_name="new", lora_path=path)
        assert broken.status_code == 400 and why in broken.json()["error"]["message"]
    assert post(served, "unload", lora_name="new").status_code == 404
    assert post(served, "load", lora_name="hf", lora_path="/x").status_code == 400
