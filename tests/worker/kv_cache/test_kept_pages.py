"""KV pages that outlive a worker, in memory of a device double: engines, one after the other."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.process import standby
from baton.process.segments import SegmentKeeper
from baton_worker import service
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator
from baton_worker.engine import startup
from baton_worker.engine.engine import Engine
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.kept_pages import KeptPages
from baton_worker.layers.build_context import BuildContext
from tests.fakes.kept_device import KeptDevice, kept_device
from tests.fakes.threaded_ranks import together
from tests.gpu.checks import logs

SITE = BuildContext(torch.device("cpu"), torch.float32)
PROMPT = [3, 7, 9, 11, 2, 5, 8] * 6


def build(stories: Path, run_dir: Path, **settings: Any) -> Engine:
    config: dict[str, Any] = {"model": str(stories), "device": "cpu", "run_dir": run_dir}
    return Engine.build(Config(**config | {"num_gpu_blocks_override": 64} | settings))


def close(engine: Engine, device: KeptDevice) -> None:
    engine.close()
    del engine
    gc.unfreeze()
    gc.collect()
    device.keeper.sweep()


def test_the_next_worker_has_the_pages_whose_hashes_were_confirmed(
    stories: Path, run_dir: Path, tmp_path: Path
) -> None:
    """Its first steps and a spare's write to none of them; a worker that died of an error leaves
    zeros; and pages of other settings are other memory."""
    expected = logs(plain := build(stories, run_dir), [PROMPT])
    plain.close()
    with kept_device(run_dir, tmp_path) as device, SegmentKeeper(run_dir) as segments:
        config = Config(model=str(stories), run_dir=run_dir)
        first = build(stories, run_dir)
        assert logs(first, [PROMPT]) == expected
        assert first.kept_pages is not None and not first.kept_pages.as_left
        held = service.persistent_cache(first, config)
        assert held is not None and held.hashes() == {}
        logs(first, [PROMPT])
        held.put({0: b"a" * 16, 1: b"b" * 16})
        pages = [plane[:64].clone() for plane in first.cache.planes]
        assert any(plane.any() for plane in pages)

        standby.hold()
        try:
            spare = build(stories, run_dir, num_gpu_blocks_override=0)
        finally:
            standby.call()
        assert spare.resolved.num_pages == 64, "as many as there are, without a measurement"
        sizes = dict(device.driver.sizes)
        assert len(sizes) == 3, "weights, their table and pages, once for both"
        close(first, device)
        del first
        taken = service.persistent_cache(spare, config)
        assert taken is not None and taken.hashes() == {0: b"a" * 16, 1: b"b" * 16}
        for plane, left in zip(spare.cache.planes, pages, strict=True):
            assert torch.equal(plane[:64], left), "a warm-up has written to it"
        assert logs(spare, [PROMPT]) == expected and spare.keeps_memory

        segments.end_lease("worker")
        third = build(stories, run_dir)
        again = service.persistent_cache(third, config)
        assert again is not None and again.hashes() == {}
        assert not any(plane.any() for plane in third.cache.planes), "nobody vouches for them"
        assert logs(third, [PROMPT]) == expected

        again.give_back(third.cache)
        assert not third.keeps_memory and not spare.keeps_memory
        fourth = build(stories, run_dir, block_size=32)
        assert fourth.kept_pages is not None and not fourth.kept_pages.as_left
        assert logs(fourth, [PROMPT]) == expected


def test_ranks_hand_on_weights_and_the_pages_that_all_of_them_have(
    stories: Path, run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sizes = {"tensor_parallel_size": 2, "num_gpu_blocks_override": 8}
    config = Config(model=str(stories), device="cpu", run_dir=run_dir, **sizes)  # type: ignore[arg-type]

    def rank(ranks: Communicator) -> tuple[LoadedModel, KeptPages, KVCache]:
        loaded, resolved, _ = startup.load(config, stories, SITE, ranks)
        assert resolved.pages is not None and resolved.num_pages == 8
        settings = startup.page_settings(loaded, resolved)
        kept, settings["allocate"] = resolved.pages.lease(settings)
        assert kept is not None
        return loaded, kept, KVCache(**settings)

    with kept_device(run_dir, tmp_path) as device:
        before = together(2, rank)
        assert len(device.driver.sizes) == 6, "weights, their table and pages of each"
        for number, (loaded, kept, cache) in enumerate(before):
            assert loaded.kept is not None and not kept.as_left
            with torch.inference_mode():
                cache.planes[0][3] = number + 1
        assert before[0][1].generation == before[1][1].generation
        caplog.clear()
        for number, (_, kept, cache) in enumerate(together(2, rank)):
            assert kept.as_left and kept.generation == before[0][1].generation
            assert bool((cache.planes[0][3] == number + 1).all())
        assert caplog.text.count("the checkpoint is not read") == 2
        device.client.drop("pages worker/1")
        for _, kept, cache in together(2, rank):
            assert not kept.as_left and kept.generation != before[0][1].generation
            assert not cache.planes[0].any()
        kept.drop()
        assert not any(device.client.find(name).size for name in ("pages worker", "pages worker/1"))
        del before, loaded, kept, cache


def test_a_worker_that_sleeps_or_switches_gives_its_memory_back(
    stories: Path, run_dir: Path, tmp_path: Path
) -> None:
    config = Config(model=str(stories), device="cpu", run_dir=run_dir, num_gpu_blocks_override=64)
    with kept_device(run_dir, tmp_path) as device, SegmentKeeper(run_dir):
        engine = Engine.build(config)
        expected = logs(engine, [PROMPT])
        kept = service.persistent_cache(engine, config)
        assert kept is not None
        kept.give_back(engine.cache)
        wake = engine.sleep(2, config)
        assert len(device.driver.sizes) == 2
        del kept
        close(engine, device)
        del engine
        gc.collect()
        device.keeper.sweep()
        assert device.driver.sizes == {}
        again = wake()()
        assert logs(again, [PROMPT]) == expected and len(device.driver.sizes) == 3
        model = again.load_version(again.version)
        assert model.kept is None, "weights beside those in use are private"
        assert again.try_out(model) == ""
        again.switch_to(model, again.version, config)
        del model
        assert logs(again, [PROMPT]) == expected
        gc.collect()
        device.keeper.sweep()
        assert len(device.driver.sizes) == 1
        again.close()
