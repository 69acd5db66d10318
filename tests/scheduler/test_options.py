"""Settings become limits, all of them."""

from __future__ import annotations

import msgspec

from baton_scheduler.config import Config
from baton_scheduler.options import SchedulerOptions


def test_every_limit_is_a_setting() -> None:
    config = Config(max_num_queued_reqs=5, scheduling_policy="priority", no_worker_seconds=2.5)
    limits = SchedulerOptions.of(config)
    assert (limits.max_num_queued_reqs, limits.scheduling_policy, limits.no_worker_seconds) == (
        5,
        "priority",
        2.5,
    )


def test_the_defaults_are_those_of_the_settings() -> None:
    assert SchedulerOptions.of(Config()) == SchedulerOptions()


def test_limits_survive_a_recording() -> None:
    limits = SchedulerOptions(max_worker_losses=9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(limits), type=SchedulerOptions) == limits
