from __future__ import annotations

import threading

from baton.process import standby


def test_only_a_spare_waits_and_only_until_it_is_called() -> None:
    standby.wait()
    standby.hold()
    serving = threading.Event()
    spare = threading.Thread(target=lambda: (standby.wait(), serving.set()), daemon=True)
    spare.start()
    assert not serving.wait(0.2)
    standby.call()
    assert serving.wait(10)
    standby.wait()
