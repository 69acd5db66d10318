"""Events and decisions of the state machine. Events can be recorded to a file."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from baton.protocol import (
    AdminCommand,
    AdminReply,
    CacheReset,
    EncodeMedia,
    Failed,
    Grant,
    HeldPages,
    MediaEncoded,
    PageHashes,
    Plan,
    Pull,
    Pulled,
    Result,
    Revoke,
    Role,
    Submit,
    Tokens,
    TruncatePlan,
    WorkerCommand,
    WorkerInfo,
    WorkerReply,
)

Cause: TypeAlias = Literal["outside", "inside", "unknown"]
"""Why a worker is gone. outside: a signal, an operator or its host; inside: a crash caused by its
work; or not known yet."""


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    pass


class WorkerJoined(_Event, frozen=True, tag="worker_joined"):
    """A worker has joined. `epoch` is its incarnation."""

    name: str
    epoch: int
    info: WorkerInfo
    held: HeldPages | None = None
    """Pages cached in an earlier epoch; well formed, see `baton.kv.page_hashes`."""


class WorkerLeft(_Event, frozen=True, tag="worker_left"):
    """A worker is gone or hung; its sequences return to the queue."""

    name: str
    cause: Cause = "outside"


class DeathExplained(_Event, frozen=True, tag="death_explained"):
    """A supervisor reports why a worker exited whose cause was unknown, or its process joins again:
    then only the connection was lost."""

    epoch: int
    cause: Cause


class WorkerDraining(_Event, frozen=True, tag="worker_draining"):
    """A worker takes no new sequences and finishes the running ones."""

    name: str


class WorkerAssigned(_Event, frozen=True, tag="worker_assigned"):
    """An operator has changed the role of a worker."""

    name: str
    role: Role


class Arrived(_Event, frozen=True, tag="arrived"):
    """A gateway submits a sequence."""

    gateway: str
    submit: Submit
    trace: str = ""
    deadline_ms: int = 0
    """Time limit in milliseconds from now; 0 means none."""


class Aborted(_Event, frozen=True, tag="aborted"):
    """A gateway ends sequences. `handles` is a uint32 column."""

    gateway: str
    handles: bytes


class GatewayLost(_Event, frozen=True, tag="gateway_lost"):
    """A gateway is gone; its sequences end."""

    gateway: str


class CacheCleared(_Event, frozen=True, tag="cache_cleared"):
    """A gateway requests a reset of the prefix cache."""

    gateway: str
    id: int


class AdminRequested(_Event, frozen=True, tag="admin_requested"):
    """An operator sends a command to all workers of a model."""

    gateway: str
    command: AdminCommand


class WorkerReplied(_Event, frozen=True, tag="worker_replied"):
    """A worker answers a `WorkerCommand`."""

    worker: str
    reply: WorkerReply


class Settled(_Event, frozen=True, tag="settled"):
    """A worker reports the result of a step."""

    worker: str
    result: Result


class Transferred(_Event, frozen=True, tag="transferred"):
    """A worker reports the end of a pull, successful or not."""

    worker: str
    pulled: Pulled


class MediaSettled(_Event, frozen=True, tag="media_settled"):
    """An encode worker reports the result of an encoding."""

    worker: str
    encoded: MediaEncoded


class Tick(_Event, frozen=True, tag="tick"):
    """Advance time to `now`, in monotonic seconds; place waiting sequences and make plans."""

    now: float


class Clock(_Event, frozen=True, tag="clock"):
    """Advance time to `now` for the events that follow. Decisions are left to the next tick."""

    now: float


class Draining(_Event, frozen=True, tag="draining"):
    """Refuse new sequences and finish the others."""


class Closing(_Event, frozen=True, tag="closing"):
    """The process ends now; every live sequence gets an error."""


Event: TypeAlias = (
    WorkerJoined
    | WorkerLeft
    | DeathExplained
    | WorkerDraining
    | WorkerAssigned
    | Arrived
    | Aborted
    | GatewayLost
    | CacheCleared
    | AdminRequested
    | WorkerReplied
    | Settled
    | Transferred
    | MediaSettled
    | Tick
    | Clock
    | Draining
    | Closing
)


class Reply(NamedTuple):
    """Message to a gateway."""

    gateway: str
    message: Tokens | Failed | CacheReset | AdminReply


class Dispatch(NamedTuple):
    """Plan for a worker."""

    worker: str
    message: Plan


class WorkerMessage(NamedTuple):
    """Other message to a worker: page hashes, transfers, encodings, truncation of a plan,
    commands."""

    worker: str
    message: Grant | Revoke | Pull | TruncatePlan | PageHashes | WorkerCommand | EncodeMedia


Decision: TypeAlias = Reply | Dispatch | WorkerMessage
