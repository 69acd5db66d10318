"""The process groups of a rank: that of its stage, and that of all stages."""

from __future__ import annotations

from pathlib import Path

import torch

from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator, SingleRank
from baton_worker.distributed.pipeline_parallel import Pipeline, rank_stage
from baton_worker.distributed.process_groups import join


def join_stages(
    meeting: Path, rank: int, config: Config, device: torch.device
) -> tuple[Communicator, Pipeline | None]:
    """Join; returns when all ranks have.

    Args:
        meeting: as for `process_groups.join`; files beside it have names that begin with its own.
        rank: rank of this process among all of the worker, from 0.
        config: settings of the worker.
        device: device of this rank.

    Returns:
        The ranks that have a part of the same layers each, and the place among the stages; None
        where there is one stage.
    """
    width, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    everyone = join(meeting, rank, config.num_ranks, device, in_order=config.exact)
    if stages == 1:
        return everyone, None
    stage = rank_stage(rank, width, stages)
    counts = [int(count) for count in config.pp_layer_partition.split(",") if count]
    pipeline = Pipeline(everyone, stage, stages, tuple(counts))
    if width == 1:
        return SingleRank(), pipeline
    folder = meeting.with_name(f"{meeting.name}-stage-{stage}")
    return join(folder, rank % width, width, device, in_order=config.exact), pipeline
