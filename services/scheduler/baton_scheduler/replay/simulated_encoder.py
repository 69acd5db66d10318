"""A simulated encode worker: it answers in order, after the modelled time, and encodes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from baton.protocol import EncodeMedia, MediaEncoded
from baton_scheduler.replay.script import Script


@dataclass
class SimulatedEncoder:
    """Pending work of one encode worker."""

    epoch: int
    busy_until: float = 0.0

    def answer(self, order: EncodeMedia, script: Script, now: float) -> tuple[float, MediaEncoded]:
        """The time at which an order is done, and its answer."""
        per_item, per_token = script.encode
        seconds = per_item + per_token * order.item.length
        self.busy_until = max(now, self.busy_until) + seconds
        done = MediaEncoded(
            self.epoch,
            order.id,
            num_tokens=order.item.length,
            duration_us=max(1, round(seconds * 1e6)),
        )
        return self.busy_until, done
