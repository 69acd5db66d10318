"""Settings become limits, all of them."""

from __future__ import annotations

import msgspec

from baton_scheduler.config import Config
from baton_scheduler.options import Limits


def test_every_limit_is_a_setting() -> None:
    config = Config(max_waiting=5, order="priority", no_worker_seconds=2.5)
    limits = Limits.of(config)
    assert (limits.max_waiting, limits.order, limits.no_worker_seconds) == (5, "priority", 2.5)


def test_the_defaults_are_those_of_the_settings() -> None:
    assert Limits.of(Config()) == Limits()


def test_limits_survive_a_recording() -> None:
    limits = Limits(max_losses=9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(limits), type=Limits) == limits
