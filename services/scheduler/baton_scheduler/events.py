"""What goes into the state machine and what comes out. Events can be written to a file."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from baton.protocol import (
    CacheReset,
    Failed,
    Grant,
    HeldPages,
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
    WorkerInfo,
)


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    pass


class WorkerJoined(_Event, frozen=True, tag="worker_joined"):
    """A worker may be given work. `epoch` is its incarnation."""

    name: str
    epoch: int
    info: WorkerInfo
    held: HeldPages | None = None
    """What its pages hold of an earlier epoch; well formed, see `baton.kv.page_hashes`."""


class WorkerLeft(_Event, frozen=True, tag="worker_left"):
    """A worker is gone, or hangs: what it ran goes back to the queue."""

    name: str


class WorkerDraining(_Event, frozen=True, tag="worker_draining"):
    """A worker takes no new sequences and finishes those it has."""

    name: str


class WorkerAssigned(_Event, frozen=True, tag="worker_assigned"):
    """An operator has given a worker other legs to run."""

    name: str
    role: Role


class Arrived(_Event, frozen=True, tag="arrived"):
    """A gateway submits a sequence."""

    gateway: str
    submit: Submit
    trace: str = ""
    deadline_ms: int = 0
    """Milliseconds that it has from now on; 0 means as many as it takes."""


class Aborted(_Event, frozen=True, tag="aborted"):
    """A gateway ends sequences. `handles` is a uint32 column."""

    gateway: str
    handles: bytes


class GatewayLost(_Event, frozen=True, tag="gateway_lost"):
    """Nobody waits for this gateway's sequences any more."""

    gateway: str


class CacheCleared(_Event, frozen=True, tag="cache_cleared"):
    """A gateway asks to forget every cached prefix that no sequence uses."""

    gateway: str
    id: int


class Settled(_Event, frozen=True, tag="settled"):
    """A worker reports one step."""

    worker: str
    result: Result


class Transferred(_Event, frozen=True, tag="transferred"):
    """A worker has pulled keys from another one, or has failed to."""

    worker: str
    pulled: Pulled


class Tick(_Event, frozen=True, tag="tick"):
    """Time has come to `now`, in monotonic seconds: place what waits and plan what runs."""

    now: float


class Clock(_Event, frozen=True, tag="clock"):
    """Time has come to `now`, and what follows happens then. Nothing is decided: that is for the
    tick which comes after it."""

    now: float


class Draining(_Event, frozen=True, tag="draining"):
    """Refuse what arrives from now on, finish the rest."""


class Closing(_Event, frozen=True, tag="closing"):
    """The process ends now: every live sequence is told so."""


Event: TypeAlias = (
    WorkerJoined
    | WorkerLeft
    | WorkerDraining
    | WorkerAssigned
    | Arrived
    | Aborted
    | GatewayLost
    | CacheCleared
    | Settled
    | Transferred
    | Tick
    | Clock
    | Draining
    | Closing
)


class Reply(NamedTuple):
    """Tell a gateway."""

    gateway: str
    message: Tokens | Failed | CacheReset


class Dispatch(NamedTuple):
    """Give a worker one step."""

    worker: str
    message: Plan


class Tell(NamedTuple):
    """Tell a worker what concerns the keys that it has, passes on or gets, or the end of a plan."""

    worker: str
    message: Grant | Revoke | Pull | TruncatePlan | PageHashes


Decision: TypeAlias = Reply | Dispatch | Tell
