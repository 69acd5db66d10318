from __future__ import annotations

import os
import threading
from pathlib import Path

from baton.process import standby


def test_only_a_spare_waits_and_only_until_it_is_called() -> None:
    standby.wait()
    standby.hold()
    serving = threading.Event()
    spare = threading.Thread(target=lambda: (standby.wait(), serving.set()), daemon=True)
    spare.start()
    assert not serving.wait(0.2) and standby.held()
    standby.call(["--name", "decode-1"])
    assert serving.wait(10) and not standby.held()
    assert standby.wait() == ("--name", "decode-1")


def test_only_a_spare_inherits_the_memory_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/statm").write_text("900 500 100 1 0 300 0\n")
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        assert standby.inherited_bytes(tmp_path) == 0, "it is no spare"
        standby.hold(replaced=77)
        assert standby.inherited_bytes(tmp_path) == 400 * page, "without what others share"
        standby.hold(replaced=78)
        assert standby.inherited_bytes(tmp_path) == 0, "it has died: its memory is free already"
        standby.hold()
        assert standby.inherited_bytes(tmp_path) == 0, "nobody knows which"
    finally:
        standby.call()
