"""Weights change twice while a stream runs; then everything answers as a system that was started
with them, also after the loss of each process."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.whole_system import whole
from tests.support.served_system import Served, until
from tests.support.system.running_system import complete, works
from tests.support.system.streams import stream, text_of

pytestmark = [pytest.mark.slow, pytest.mark.row("F14.14", "F19.09")]
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1", "--worker.max-kv-bytes", "16777216")
NAME = "model.layers.2.mlp.down_proj.weight"
FIELDS = {"prompt": "It was", "max_tokens": 400}


def changed(stories: Path, folder: Path) -> Path:
    """The model with other weights."""
    shutil.copytree(stories, folder)
    torch.manual_seed(3)
    path = folder / "model.safetensors"
    save_file(
        {
            name: t + 0.3 * t.std() * torch.randn_like(t) if t.ndim > 1 else t
            for name, t in load_file(path).items()
        },
        path,
        metadata={"format": "pt"},
    )
    return folder


def post(served: Served, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return httpx.post(f"{served.url}/{path}", json=body, timeout=60)


def version(served: Served) -> str:
    return str(httpx.get(f"{served.url}/weight_version").json()["weight_version"])


def update(served: Served, info: dict[str, Any], label: str, mode: str = "keep") -> httpx.Response:
    assert post(served, "start_weight_update").status_code == 200
    sent = post(served, "update_weights", {"update_info": info})
    assert sent.status_code == 200, sent.text
    return post(served, "finish_weight_update", {"weight_version": label, "mode": mode})


PROMPTS = ("Once upon a time", "It was", "Lily")


def answers(url: str) -> list[str]:
    return [complete(url, prompt=p, max_tokens=40).json()["choices"][0]["text"] for p in PROMPTS]


def fresh_answers(model: Path) -> list[str]:
    """Those of a system that is started with these weights, in one process."""
    with whole(model) as here:
        answers = [here.complete(prompt=p, max_tokens=40) for p in PROMPTS]
        return [answer.json()["choices"][0]["text"] for answer in answers]


def test_a_stream_runs_through_two_updates(stories: Path, tmp_path: Path) -> None:
    other = changed(stories, tmp_path / "other")
    wanted = fresh_answers(other)
    backend = ("--weight-transfer-config", '{"backend": "files"}')
    served = Served(tmp_path, stories, "--workers", "2", *backend, *EXACT)
    try:
        url = served.ready().url
        first = answers(url)
        assert first != wanted and version(served) == "default"
        with ThreadPoolExecutor() as pool:
            whole = text_of(list(stream(url, **FIELDS)))
            events = stream(url, **FIELDS)
            first_events = [next(events) for _ in range(20)]
            running = pool.submit(lambda: first_events + list(events))
            digits = sha256((other / "model.safetensors").read_bytes()).hexdigest()
            info = {"path": str(other), "sha256": {"model.safetensors": digits}}
            assert update(served, info, "v1").status_code == 200 and version(served) == "v1"
            assert update(served, {"path": str(stories)}, "v2").status_code == 200
            text = text_of(running.result())
        assert (
            text.startswith(text_of(first_events)) and len(text) > 300 and version(served) == "v2"
        )
        assert text_of(first_events) == whole[: len(text_of(first_events))]
        assert answers(url) == first, "pages of other versions are of no use to these"
        # What fails changes nothing.
        lost = update(served, info | {"path": str(other), "sha256": {}}, "v3")
        assert lost.status_code == 200 and answers(url) == wanted
        (tmp_path / "torn.safetensors").write_bytes(b"no weights")
        torn = update(served, {"path": str(tmp_path / "torn.safetensors")}, "v4")
        assert torn.status_code == 400 and "cannot be read" in torn.text
        assert version(served) == "v3" and answers(url) == wanted
        assert post(served, "finish_weight_update").status_code == 409
        # Each process comes back with what was agreed.
        pids = served.pids()
        for name in ("worker-1", "scheduler"):
            os.kill(pids[name], signal.SIGKILL)
        until(lambda: works(url), "it is answered again")
        assert answers(url) == wanted and version(served) == "v3"
    finally:
        served.close()


def test_tensors_from_shared_memory(stories: Path, tmp_path: Path) -> None:
    tensor = 2 * load_file(stories / "model.safetensors")[NAME]
    data = tensor.numpy().tobytes()
    memory = SharedMemory(create=True, size=len(data))
    memory.buf[: len(data)] = data
    backend = ("--weight-transfer-config", '{"backend": "shared_memory"}')
    served = Served(tmp_path, stories, *backend, *EXACT)
    try:
        url = served.ready().url
        first = answers(url)
        info = {"name": memory.name, "names": [NAME], "dtype_names": ["float32"]}
        info |= {"shapes": [list(tensor.shape)], "sha256": sha256(data).hexdigest()}
        undisturbed = text_of(list(stream(url, **FIELDS)))
        with ThreadPoolExecutor() as pool:
            events = stream(url, **FIELDS)
            first_events = [next(events)]
            running = pool.submit(lambda: text_of(first_events + list(events)))
            assert update(served, info, "v1", "wait").status_code == 200
            assert running.result() == undisturbed, "it finishes on the old weights"
        wanted = answers(url)
        assert wanted != first
        memory.close()
        memory.unlink()
        os.kill(served.pids()["worker"], signal.SIGKILL)
        until(lambda: works(url), "it is answered again")
        assert answers(url) == wanted and version(served) == "v1"
    finally:
        served.close()
