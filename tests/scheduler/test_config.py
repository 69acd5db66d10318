"""Settings of the scheduler."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_scheduler.config import Config


def test_flags_are_read() -> None:
    config = Config.load(
        ["--plans-in-flight", "3", "--scheduling-policy", "priority", "--no-worker-seconds", "1.5"]
    )
    assert (config.plans_in_flight, config.scheduling_policy, config.no_worker_seconds) == (
        3,
        "priority",
        1.5,
    )


def test_an_unknown_order_names_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="fcfs, priority"):
        Config.load(["--scheduling-policy", "lifo"])


def test_weights_that_cannot_be_read_are_refused() -> None:
    assert Config.load(["--tenant-weights", "a=1,b=2"]).tenant_weights == "a=1,b=2"
    with pytest.raises(SettingsError, match="TENANT=WEIGHT"):
        Config.load(["--tenant-weights", "a=b"])
