"""Each rank joins the ranks of its stage, and all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from baton_worker.config import Config
from baton_worker.executor.join_stages import join_stages


def test_ranks_of_a_stage_have_a_group_of_their_own(tmp_path: Path) -> None:
    config = Config(
        tensor_parallel_size=2, pipeline_parallel_size=2, pp_layer_partition="3,2", device="cpu"
    )

    connections = list[object]()  # They stay until the last rank has read from them.

    def place(rank: int) -> tuple[int, int, int, int, int, float]:
        ranks, pipeline = join_stages(tmp_path / "meeting", rank, config, torch.device("cpu"))
        connections.extend((ranks, pipeline))
        assert pipeline is not None and pipeline.counts(5) == (3, 2)
        total = ranks.all_reduce(torch.tensor([float(rank)])).item()
        peers = pipeline.peer(-1), pipeline.peer(1)
        return pipeline.ranks.size, ranks.size, pipeline.stage, *peers, total

    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(place, range(4)))
    # The leader's is the last stage, and the sums are those of one stage.
    assert places == [
        (4, 2, 1, 2, 2, 1.0), (4, 2, 1, 3, 3, 1.0), (4, 2, 0, 0, 0, 5.0), (4, 2, 0, 1, 1, 5.0),
    ]  # fmt: skip
