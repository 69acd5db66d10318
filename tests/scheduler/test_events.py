"""Events survive a file."""

from __future__ import annotations

import msgspec
import pytest

from baton.protocol import (
    AdapterInfo,
    AdminCommand,
    LoadAdapter,
    MediaEncoded,
    Pulled,
    Result,
    Sampling,
    Submit,
    WorkerReply,
)
from baton.protocol.token_columns import pack
from baton_scheduler.events import (
    Aborted,
    AdminRequested,
    Arrived,
    CacheCleared,
    Clock,
    Closing,
    DeathExplained,
    Draining,
    Event,
    GatewayLost,
    MediaSettled,
    Settled,
    Tick,
    Transferred,
    WorkerAssigned,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
    WorkerReplied,
)
from tests.fakes.hash_worker import worker_info

SUBMIT = Submit(1, "r", pack([1, 2]), Sampling(3, stop_ids=(4,), logit_bias={5: 0.5}))
EVENTS: list[Event] = [
    Arrived("g", SUBMIT, "00-trace"),
    Aborted("g", pack([1], "I")),
    GatewayLost("g"),
    CacheCleared("g", 7),
    AdminRequested("g", AdminCommand(1, "m", LoadAdapter("a", "/a"))),
    WorkerReplied("w", WorkerReply(1, 2, adapters=(AdapterInfo("a", b"1", "/a"),))),
    WorkerJoined("w", 2**62, worker_info()),
    WorkerLeft("w", "unknown"),
    DeathExplained(2, "inside"),
    WorkerDraining("w"),
    WorkerAssigned("w", "decode"),
    Settled("w", Result(1, 2, b"", b"", b"", b"", finished={3: "stop"})),
    Transferred("w", Pulled(1, 2, "it is gone")),
    MediaSettled("w", MediaEncoded(1, 2, num_tokens=3, num_bytes=4)),
    Tick(0.1 + 0.2),
    Clock(0.1 + 0.2),
    Draining(),
    Closing(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event


def test_every_kind_of_event_is_tried() -> None:
    assert {type(event) for event in EVENTS} == set(Event.__args__)
