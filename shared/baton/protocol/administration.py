"""Commands of operators to all workers of a model, and their replies."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import Message
from baton.protocol.control import AdapterInfo
from baton.protocol.weights import UpdateMode, WeightSource, WeightTransfer, WeightVersion


class _Action(msgspec.Struct, frozen=True, array_like=True, tag_field="action"):
    pass


class LoadAdapter(_Action, frozen=True, tag="load_adapter"):
    """Load a LoRA adapter and serve it under a name."""

    name: str
    path: str
    """Path of the PEFT folder on each worker."""
    replace: bool = False
    """The name may be in use: new sequences get this adapter, running ones keep theirs."""


class UnloadAdapter(_Action, frozen=True, tag="unload_adapter"):
    """Stop serving an adapter; sequences that use it finish."""

    name: str


class DropAdapter(_Action, frozen=True, tag="drop_adapter"):
    """Free the memory of an adapter that no sequence uses. From the scheduler only."""

    digest: bytes


PauseMode: TypeAlias = Literal["keep", "wait", "abort"]
"""Running sequences: they continue after the pause, finish before it, or fail."""


class Pause(_Action, frozen=True, tag="pause"):
    """Run no sequence of the model until `Resume`; new ones wait in the queue."""

    mode: PauseMode = "keep"
    clear_cache: bool = False
    """Drop the prefix cache too."""


class Resume(_Action, frozen=True, tag="resume"):
    """Resume after `Pause`."""


class Sleep(_Action, frozen=True, tag="sleep"):
    """Free the memory of an idle model; the next request wakes it."""

    level: int = 1
    """1 frees the KV cache, 2 the weights too."""


WakeTag: TypeAlias = Literal["weights", "kv_cache"]
KV_BEFORE_WEIGHTS = "The weights sleep too: wake them first, or with tags=weights&tags=kv_cache."


class WakeUp(_Action, frozen=True, tag="wake_up"):
    """Allocate what `Sleep` has freed."""

    tags: tuple[WakeTag, ...] = ()
    """Memory to allocate; empty: everything. A model with only its weights still sleeps."""


class StartProfile(_Action, frozen=True, tag="start_profile"):
    """Start profiling the steps of every worker."""


class StopProfile(_Action, frozen=True, tag="stop_profile"):
    """Stop profiling, and write the trace."""


class InitWeightTransfer(_Action, frozen=True, tag="init_weight_transfer"):
    """Join a process group of torch.distributed with a trainer, which is rank 0."""

    address: str
    port: int
    """Address of the trainer's store."""
    rank: int
    """Rank of the worker that gets it; in an operator's command, of the first worker."""
    world_size: int
    """Size of the group: the trainer's processes, and one per worker."""


class StartWeightUpdate(_Action, frozen=True, tag="start_weight_update"):
    """Begin to collect new weights; an unfinished update is discarded."""


class UpdateWeights(_Action, frozen=True, tag="update_weights"):
    """Receive some or all of the new weights. Workers keep them next to those in use."""

    transfer: WeightTransfer


class FinishWeightUpdate(_Action, frozen=True, tag="finish_weight_update"):
    """Use the collected weights: every worker loads and tries them, then all switch."""

    label: str = ""
    """Name of the new version; empty: its number."""
    mode: UpdateMode = "keep"


class LoadWeights(_Action, frozen=True, tag="load_weights"):
    """Load a version next to the weights in use, and try it. From the scheduler only."""

    version: WeightVersion


class SwitchWeights(_Action, frozen=True, tag="switch_weights"):
    """Switch to the loaded version after the planned steps, and join again. From the scheduler
    only."""

    digest: bytes


class DropWeights(_Action, frozen=True, tag="drop_weights"):
    """Discard what was received or loaded and is not in use. From the scheduler only."""


Action: TypeAlias = (
    LoadAdapter
    | UnloadAdapter
    | DropAdapter
    | Pause
    | Resume
    | Sleep
    | WakeUp
    | StartProfile
    | StopProfile
    | InitWeightTransfer
    | StartWeightUpdate
    | UpdateWeights
    | FinishWeightUpdate
    | LoadWeights
    | SwitchWeights
    | DropWeights
)


class AdminCommand(Message, tag="admin_command", frozen=True):
    """Change something on all workers of a model. gateway -> scheduler, on request."""

    id: int
    """Chosen by the gateway; the reply carries it."""
    model: str
    action: Action


class AdminReply(Message, tag="admin_reply", frozen=True):
    """Reply to `AdminCommand`, once every worker has replied. scheduler -> gateway."""

    id: int
    status: int = 200
    """HTTP status."""
    reason: str = ""
    """Reason for refusal or failure; empty on success."""
    digest: bytes = b""
    """Digest of the loaded adapter."""


class WorkerCommand(Message, tag="worker_command", frozen=True):
    """An action for one worker. scheduler -> worker."""

    epoch: int
    id: int
    """Chosen by the scheduler; the reply carries it."""
    action: Action


class WorkerReply(Message, tag="worker_reply", frozen=True):
    """Reply to `WorkerCommand`. worker -> scheduler."""

    epoch: int
    id: int
    reason: str = ""
    """Reason for failure; empty on success."""
    digest: bytes = b""
    """Digest of the loaded adapter."""
    adapters: tuple[AdapterInfo, ...] = ()
    """All adapters of the worker after it; see `WorkerInfo.adapters`."""
    source: WeightSource | None = None
    """Received weights."""
