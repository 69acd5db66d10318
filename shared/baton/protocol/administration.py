"""What an operator asks of all workers of a model, and their answers."""

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
    """PEFT folder, as each worker sees it."""
    replace: bool = False
    """The name may be taken: new sequences get this adapter, running ones keep theirs."""


class UnloadAdapter(_Action, frozen=True, tag="unload_adapter"):
    """Serve an adapter no more; sequences that have it finish."""

    name: str


class DropAdapter(_Action, frozen=True, tag="drop_adapter"):
    """Free the memory of an adapter that no sequence has. From the scheduler only."""

    digest: bytes


PauseMode: TypeAlias = Literal["keep", "wait", "abort"]
"""What becomes of running sequences: they go on after the pause, finish before it, or fail."""


class Pause(_Action, frozen=True, tag="pause"):
    """Run no sequence of the model until `Resume`; new ones wait in the queue."""

    mode: PauseMode = "keep"
    clear_cache: bool = False
    """Forget the cached prefixes too."""


class Resume(_Action, frozen=True, tag="resume"):
    """Go on after `Pause`."""


class Sleep(_Action, frozen=True, tag="sleep"):
    """Free the memory of an idle model; the next request wakes it."""

    level: int = 1
    """1 frees keys and values, 2 the weights too."""


WakeTag: TypeAlias = Literal["weights", "kv_cache"]
KV_BEFORE_WEIGHTS = "The weights sleep too: wake them first, or with tags=weights&tags=kv_cache."


class WakeUp(_Action, frozen=True, tag="wake_up"):
    """Take back what `Sleep` has freed."""

    tags: tuple[WakeTag, ...] = ()
    """What to take back; empty: everything. With its weights alone a model still sleeps."""


class StartProfile(_Action, frozen=True, tag="start_profile"):
    """Record what every worker's steps do."""


class StopProfile(_Action, frozen=True, tag="stop_profile"):
    """End the recording, and write it."""


class InitWeightTransfer(_Action, frozen=True, tag="init_weight_transfer"):
    """Join a process group of torch.distributed with a trainer, who is rank 0."""

    address: str
    port: int
    """Where the trainer's store listens."""
    rank: int
    """Of the worker that is told; in the command of an operator of the first worker."""
    world_size: int
    """The trainer's processes in the group, and one for each worker."""


class StartWeightUpdate(_Action, frozen=True, tag="start_weight_update"):
    """Begin to collect new weights; one that was begun before is given up."""


class UpdateWeights(_Action, frozen=True, tag="update_weights"):
    """Receive some or all of the new weights. Workers keep them beside those that they use."""

    transfer: WeightTransfer


class FinishWeightUpdate(_Action, frozen=True, tag="finish_weight_update"):
    """Use the collected weights: every worker loads them, tries them out, then all switch."""

    label: str = ""
    """Name of the new version; empty: its number."""
    mode: UpdateMode = "keep"


class LoadWeights(_Action, frozen=True, tag="load_weights"):
    """Load a version beside the weights in use, and try it out. From the scheduler only."""

    version: WeightVersion


class SwitchWeights(_Action, frozen=True, tag="switch_weights"):
    """Use the version that was loaded, after the steps that are planned, and join again with it.
    From the scheduler only."""

    digest: bytes


class DropWeights(_Action, frozen=True, tag="drop_weights"):
    """Forget what was received or loaded and is not in use. From the scheduler only."""


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
    """Chosen by the gateway; the answer carries it."""
    model: str
    action: Action


class AdminReply(Message, tag="admin_reply", frozen=True):
    """Answer to `AdminCommand`, once every worker has answered. scheduler -> gateway."""

    id: int
    status: int = 200
    """HTTP status."""
    reason: str = ""
    """Why it was refused or failed; empty on success."""
    digest: bytes = b""
    """Of the adapter that was loaded."""


class WorkerCommand(Message, tag="worker_command", frozen=True):
    """An action for one worker. scheduler -> worker."""

    epoch: int
    id: int
    """Chosen by the scheduler; the answer carries it."""
    action: Action


class WorkerReply(Message, tag="worker_reply", frozen=True):
    """Answer to `WorkerCommand`. worker -> scheduler."""

    epoch: int
    id: int
    reason: str = ""
    """Why it failed; empty on success."""
    digest: bytes = b""
    """Of the adapter that was loaded."""
    adapters: tuple[AdapterInfo, ...] = ()
    """All adapters that the worker has now; see `WorkerInfo.adapters`."""
    source: WeightSource | None = None
    """Weights that were received."""
