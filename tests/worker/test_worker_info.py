"""What a worker says of itself."""

from __future__ import annotations

from pathlib import Path

from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.worker_info import worker_info


def test_a_worker_says_what_its_engine_can(stories: Path, run_dir: Path) -> None:
    config = Config(
        model=str(stories), run_dir=run_dir, device="cpu", dtype="float32", threads=1,
        max_num_seqs=3, num_gpu_blocks_override=9,
    )  # fmt: skip
    engine = Engine.build(config)
    kv_transfer = engine.kv_transfer(config, "w")
    info = worker_info(engine, "stories", "prefill", kv_transfer)
    assert (info.model, info.role, info.num_pages, info.max_num_seqs) == (
        "stories", "prefill", 9, 3,
    )  # fmt: skip
    assert (info.device, info.dtype, info.vocab_size) == ("cpu", "float32", 512)
    assert (
        info.kv_layout == kv_transfer.layout and info.adapters == () and info.encoder_layout == ""
    )
    kv_transfer.start()
    kv_transfer.close()
