"""Two streams, of a model and of an adapter, run through twenty adapter loads, two weight updates
that a trainer broadcasts, and a sleep. Every token is the one that the reference would choose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton_ops.bench.server import free_port
from baton_worker.weight_transfer.broadcast import BroadcastGroup
from tests.support import tiny_models
from tests.support.served_system import Served, until
from tests.support.worker.lora_folders import merge, write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.row("F11.04", "F14.14", "F19.05", "F19.06", "F19.09")]
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1", "--worker.max-kv-bytes", "33554432")
FLAGS = (
    "--enable-lora",
    "--allow-runtime-lora-updating",
    "--max-loras",
    "2",
    "--max-cpu-loras",
    "8",
)
BACKEND = ("--weight-transfer-config", '{"backend": "gloo"}')
CONTEXT, LOADS, PROMPT = 8192, 20, [5, 9, 17]
PROJECTIONS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")


class Streaming:
    """A stream of greedy tokens that a thread reads until it is told to stop."""

    def __init__(self, pool: ThreadPoolExecutor, url: str, model: str) -> None:
        self.tokens, self.id, self._over = list[int](), "", False
        body = {"model": model, "prompt": PROMPT, "stream": True, "temperature": 0}
        body |= {"ignore_eos": True, "max_tokens": CONTEXT - 64, "return_token_ids": True}
        self._reader: Future[None] = pool.submit(self._read, url, body)

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    self.id = event["id"]
                    self.tokens += [t for c in event["choices"] for t in c["token_ids"]]
                if self._over:
                    return

    def goes_on(self, count: int = 10) -> None:
        """Returns when it has that many more tokens."""
        wanted = len(self.tokens) + count
        until(lambda: self._reader.done() or len(self.tokens) >= wanted, "it goes on")
        assert not self._reader.done(), "it ended too early: give it a longer context"

    def end(self) -> None:
        self._over = True
        self._reader.result()


def changed(base: Path, folder: Path) -> Path:
    """The model with other weights."""
    shutil.copytree(base, folder)
    generator = torch.Generator().manual_seed(7)
    stored = load_file(base / "model.safetensors")
    for name, weight in stored.items():
        if weight.ndim > 1:
            stored[name] = weight + weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


class Trainer:
    """Rank 0 of a group with the worker."""

    def __init__(self, pool: ThreadPoolExecutor, served: Served) -> None:
        self._pool, self._served, port = pool, served, free_port()
        init = {"master_address": "127.0.0.1", "master_port": port, "world_size": 2}
        joined = pool.submit(self._post, "init_weight_transfer_engine", {"init_info": init})
        self._group = BroadcastGroup("127.0.0.1", port, 0, 2)
        joined.result()

    def update(self, folder: Path, label: str) -> None:
        """Every worker gets these weights by broadcast, and uses them."""
        weights = load_file(folder / "model.safetensors")
        info: dict[str, Any] = {"names": list(weights), "sha256": digest(weights.values())}
        info["dtype_names"] = [str(w.dtype).removeprefix("torch.") for w in weights.values()]
        info["shapes"] = [list(w.shape) for w in weights.values()]
        self._post("start_weight_update")
        sent = self._pool.submit(self._post, "update_weights", {"update_info": info})
        self._group.send(weights.values())
        sent.result()
        self._post("finish_weight_update", {"weight_version": label})

    def _post(self, path: str, body: dict[str, Any] | None = None) -> None:
        answer = httpx.post(f"{self._served.url}/{path}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text


def digest(tensors: Any) -> str:
    total = sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def spans(served: Served, stream: Streaming) -> Iterator[tuple[int, int, str]]:
    """First and last output token of each version of the weights."""
    told = httpx.get(f"{served.url}/v1/requests/{stream.id}/explain").json()
    [choice] = told["choices"]
    versions = choice["weight_versions"]
    ends = [*(v["first_token"] for v in versions[1:]), len(stream.tokens)]
    for version, end in zip(versions, ends, strict=True):
        yield version["first_token"], end, version["weight_version"]


def gaps(folder: Path, tokens: list[int]) -> Tensor:
    """By how much each output token misses the best of the reference, float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    return logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def test_no_token_is_wrong(tmp_path: Path) -> None:
    base = tiny_models.save_model(tmp_path / "hf", max_position_embeddings=CONTEXT)
    other, shapes = changed(base, tmp_path / "other"), dict[str, tuple[int, int]]()
    for name, weight in load_file(base / "model.safetensors").items():
        if name.removesuffix(".weight").endswith(PROJECTIONS):
            shapes[name.removesuffix(".weight")] = (weight.shape[0], weight.shape[1])
    made = [write_adapter(tmp_path / f"a{n}", shapes, seed=n, scale=0.2) for n in range(LOADS + 1)]
    served = Served(tmp_path, base, *FLAGS, *BACKEND, *EXACT, "--lora-modules", f"own={made[-1]}")
    try:
        url = served.ready().url

        def post(path: str, **body: object) -> None:
            answer = httpx.post(f"{url}/{path}", json=body or None, timeout=60)
            assert answer.status_code == 200, answer.text

        def load(numbers: range) -> None:
            for number in numbers:
                post("v1/load_lora_adapter", lora_name=f"a{number}", lora_path=str(made[number]))
                ask = {"model": f"a{number}", "prompt": PROMPT, "max_tokens": 2}
                post("v1/completions", **ask)

        with ThreadPoolExecutor() as pool:
            streams = [Streaming(pool, url, model) for model in ("hf", "own")]
            trainer = Trainer(pool, served)
            load(range(LOADS // 2))
            for folder, label in ((other, "v1"), (base, "v2")):
                for stream in streams:
                    stream.goes_on()
                trainer.update(folder, label)
            for path in ("pause?mode=keep", "sleep?level=1", "wake_up", "resume"):
                post(path)
            load(range(LOADS // 2, LOADS))
            for stream in streams:
                stream.goes_on()
                stream.end()
        weights = {"default": base, "v1": other, "v2": base}
        for stream, adapter in zip(streams, (None, made[-1]), strict=True):
            seen = list(spans(served, stream))
            assert [version for *_, version in seen] == list(weights)
            found = {}
            for number, (version, folder) in enumerate(weights.items()):
                if adapter is not None:
                    folder = merge(folder, adapter, tmp_path / f"merged-{number}")
                found[version] = gaps(folder, stream.tokens)
            for first, end, version in seen:
                assert end > first and found[version][first:end].max() < 1e-3, version
            first, end, _ = seen[1]
            assert found["default"][first:end].max() > 0.1, "other weights choose other tokens"
    finally:
        served.close()
