"""Embedders of every kind through their endpoints: what makes a vector, and what it survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from baton_scheduler.events import WorkerJoined, WorkerLeft
from tests.fakes.whole_system import (
    EPOCH,
    WORKER,
    Whole,
    info_of,
    whole,
)
from tests.support import tiny_encoders, tiny_models
from tests.support.served_system import PATIENCE, Served, until

TEXTS = ["a", "the baton", "the relay runner hands the baton to the next runner", "a?"]


def ids_of(folder: Path, text: str) -> torch.Tensor:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()  # Some files ask for it, and the reference is not given a mask.
    return torch.tensor([tokenizer.encode(text).ids])


@torch.inference_mode()
def states(oracle: Any, folder: Path, text: str) -> torch.Tensor:
    found: torch.Tensor = oracle.base_model(ids_of(folder, text)).last_hidden_state[0]
    return found


def vectors(here: Whole, texts: list[str] | str = TEXTS, **fields: Any) -> list[torch.Tensor]:
    answer = here.embed(texts, **fields)
    assert answer.status_code == 200, answer.text
    return [torch.tensor(entry["embedding"]) for entry in answer.json()["data"]]


def near(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    close = (ours - expected).abs().max() < 1e-3
    return bool(close and F.cosine_similarity(ours, expected, dim=0) > 0.9999)


def unit(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=-1)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen")
    oracle = tiny_models.save_checkpoint(folder, "Qwen3ForCausalLM")
    tiny_models.save_tokenizer(folder)
    return folder, oracle


@pytest.mark.parametrize("budget", [2048, 7])
@pytest.mark.parametrize("pooling", ["auto", "mean", "max", "cls"])
def test_a_decoder_embeds(qwen: tuple[Path, Any], budget: int, pooling: str) -> None:
    """In one piece or in chunks, and with pages that an earlier text has left."""
    folder, oracle = qwen
    worker = {
        "task": "embed",
        "pooling_type": pooling,
        "max_num_batched_tokens": budget,
        "block_size": 4,
    }
    with whole(folder, worker=worker) as here:
        for _ in range(2):
            for text, ours in zip(TEXTS, vectors(here), strict=True):
                found = states(oracle, folder, text)
                expected = {
                    "auto": found[-1],
                    "mean": found.mean(0),
                    "max": found.amax(0),
                    "cls": found[0],
                }
                assert near(ours, unit(expected[pooling])), text
        hits = here.engine.scheduler.stats().prefix_hits
        assert hits > 0 if pooling == "auto" else hits == 0


def test_a_base_model_embeds(tmp_path: Path) -> None:
    """A checkpoint of the body alone, without the prefix of its names or a head."""
    oracle = tiny_models.save_checkpoint(tmp_path, "MistralForCausalLM", sliding_window=None)
    tiny_models.save_tokenizer(tmp_path)
    oracle.model.save_pretrained(tmp_path)
    tiny_encoders.rewrite(tmp_path, {}, architectures=["MistralModel"])
    with whole(tmp_path) as here:
        for text, ours in zip(TEXTS, vectors(here), strict=True):
            assert near(ours, unit(states(oracle, tmp_path, text)[-1]))


def test_a_decoder_classifies(tmp_path: Path) -> None:
    import transformers

    config = tiny_models.tiny_config("LlamaForCausalLM", num_labels=3)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        oracle = transformers.LlamaForSequenceClassification(config).eval()
    oracle.save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    with whole(tmp_path) as here:
        answer = here.post("/classify", {"input": TEXTS}).json()["data"]
        for text, entry in zip(TEXTS, answer, strict=True):
            found = states(oracle, tmp_path, text)[-1]
            with torch.inference_mode():
                expected = oracle.score(found).softmax(-1)
            assert entry["probs"] == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize("normalize", [True, False])
def test_modules_of_sentence_transformers(tmp_path: Path, normalize: bool) -> None:
    """Mean, a dense layer, and the length one or not."""
    oracle = tiny_encoders.save(tmp_path, "BertModel")
    tiny_encoders.save_sentence_files(tmp_path, normalize=normalize)
    dense = tiny_encoders.save_dense(tmp_path, 48, 20)
    with whole(tmp_path) as here:
        for text, ours in zip(TEXTS, vectors(here), strict=True):
            with torch.inference_mode():
                expected = torch.tanh(dense(states(oracle, tmp_path, text).mean(0)))
            assert near(ours, unit(expected) if normalize else expected)


def test_sizes_that_a_model_was_trained_for(tmp_path: Path) -> None:
    oracle = tiny_encoders.save(tmp_path, "BertModel")
    tiny_encoders.rewrite(tmp_path, {}, matryoshka_dimensions=[8, 16])
    with whole(tmp_path) as here:
        [ours] = vectors(here, "the baton", dimensions=16)
        assert near(ours, unit(states(oracle, tmp_path, "the baton")[0][:16]))
        refused = here.embed("the baton", dimensions=9)
        assert refused.status_code == 400 and "8, 16" in refused.json()["error"]["message"]


def test_a_tokenizer_without_an_end_or_a_template(tmp_path: Path) -> None:
    """Nothing that only text needs is missed, and its own endpoints still answer."""
    tiny_encoders.save(tmp_path, "RobertaModel")
    with whole(tmp_path) as here:
        found = here.post("/tokenize", {"prompt": "the baton"}).json()
        assert found["tokens"] == ids_of(tmp_path, "the baton")[0].tolist()
        text = here.post("/detokenize", {"tokens": found["tokens"], "skip_special_tokens": True})
        assert text.json() == {"prompt": "the baton"}
        assert here.get("/health").status_code == 200
        assert json.loads(here.get("/fleet").text)["model"] == here.model


async def under_way(here: Whole) -> asyncio.Task[httpx.Response]:
    """A request whose texts have all reached the scheduler."""
    body = {"model": here.model, "input": TEXTS}
    asked = asyncio.create_task(here.client.post("/v1/embeddings", json=body))
    while len(here.engine.scheduler.state.live) < len(TEXTS):
        await asyncio.sleep(0.001)
    return asked


def test_a_lost_worker_is_a_pause(tmp_path: Path) -> None:
    """Texts that ran there run again elsewhere; the client sees nothing."""
    tiny_encoders.save(tmp_path, "BertModel")
    with whole(tmp_path) as here:
        expected = vectors(here)
        scheduler = here.engine.scheduler
        scheduler.hold = True

        async def lose() -> httpx.Response:
            asked = await under_way(here)
            scheduler.advance()  # Everything is under way, no result has come.
            scheduler._apply(WorkerLeft(WORKER))
            scheduler.plans.clear()
            here.worker.reset()
            scheduler.hold = False
            scheduler._apply(WorkerJoined(WORKER, EPOCH + 1, info_of(here.worker, here.model)))
            scheduler.go_on()
            return await asked

        answer = here.run(lose).json()
        found = [torch.tensor(entry["embedding"]) for entry in answer["data"]]
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(found, expected, strict=True))


def test_a_lost_scheduler_is_a_pause(tmp_path: Path) -> None:
    """The gateway hands the texts to the next one."""
    tiny_encoders.save(tmp_path, "BertModel")
    with whole(tmp_path) as here:
        expected = vectors(here)
        scheduler = here.engine.scheduler
        scheduler.hold = True

        async def lose() -> httpx.Response:
            asked = await under_way(here)
            scheduler.hold = False
            scheduler.restart()
            return await asked

        answer = here.run(lose).json()
        found = [torch.tensor(entry["embedding"]) for entry in answer["data"]]
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(found, expected, strict=True))


def test_a_client_that_leaves_ends_its_texts(tmp_path: Path) -> None:
    tiny_encoders.save(tmp_path, "BertModel")
    with whole(tmp_path, request_timeout_seconds=0.3) as here:
        here.engine.scheduler.hold = True
        answer = here.embed(TEXTS)
        assert answer.status_code == 504
        assert here.engine.scheduler.state.idle
        here.engine.scheduler.hold = False
        assert here.embed("a").status_code == 200


SENTENCES = [
    "A cat is sleeping on the sofa.",
    "The kitten naps on the couch.",
    "Interest rates were raised by the central bank.",
    "The bank has increased its interest rate.",
    "yes",
]


@pytest.mark.slow
def test_a_real_embedder_equals_transformers(minilm: Path) -> None:
    """all-MiniLM-L6-v2: the mean over real weights, and meanings that are near are near."""
    import transformers

    oracle = transformers.BertModel.from_pretrained(minilm).eval()
    with whole(minilm) as here:
        ours = vectors(here, SENTENCES)
        for text, vector in zip(SENTENCES, ours, strict=True):
            assert near(vector, unit(states(oracle, minilm, text).mean(0)))
    found = np.array([vector.numpy() for vector in ours])
    similar = found @ found.T
    assert similar[0, 1] > 0.5 > 0.2 > similar[0, 2]
    assert similar[2, 3] > 0.5 > 0.2 > similar[1, 3]


@pytest.mark.slow
def test_processes_of_an_embedder(tmp_path: Path, run_dir: Path) -> None:
    """Five of them: the banner's example, vectors, and a worker that is killed at work."""
    model = tmp_path / "embedder"
    oracle = tiny_encoders.save(model, "BertModel")
    tiny_encoders.save_sentence_files(model)
    served = Served(run_dir, model, "--worker.dtype", "float32")
    try:
        served.ready()
        assert "/v1/embeddings" in served.banner
        body, first = {"model": "embedder", "input": TEXTS}, served.pids()["worker"]
        for attempt in range(2):
            answer = httpx.post(f"{served.url}/v1/embeddings", json=body, timeout=PATIENCE)
            found = [torch.tensor(entry["embedding"]) for entry in answer.json()["data"]]
            for text, ours in zip(TEXTS, found, strict=True):
                assert near(ours, unit(states(oracle, model, text).mean(0)))
            if not attempt:
                os.kill(first, signal.SIGKILL)
                until(lambda: served.pids().get("worker", first) != first, "another has started")
                until(lambda: bool(served.fleet()["workers"]), "the worker is back")
        refused = served.complete(prompt="a")
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "model"
        until(lambda: served.pages_held() == 0, "all pages are free")
    finally:
        served.close()


@pytest.mark.slow
def test_processes_of_a_cross_encoder(tmp_path: Path, run_dir: Path) -> None:
    model = tmp_path / "scorer"
    oracle = tiny_encoders.save(model, "XLMRobertaForSequenceClassification", num_labels=1)
    served = Served(run_dir, model, "--worker.dtype", "float32", "--task", "score")
    try:
        served.ready()
        assert "/score" in served.banner
        body = {"query": "who?", "documents": TEXTS}
        answer = httpx.post(f"{served.url}/rerank", json=body, timeout=PATIENCE).json()
        found = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        for index, text in enumerate(TEXTS):
            ids = torch.tensor([tokenizer.encode("who?", text).ids])
            with torch.inference_mode():
                expected = float(oracle(ids).logits.sigmoid())
            assert found[index] == pytest.approx(expected, abs=1e-3)
    finally:
        served.close()
