from __future__ import annotations

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
    assert serving.wait(60) and not standby.held()
    assert standby.wait() == ("--name", "decode-1")


def test_what_a_fork_server_defers_is_done_by_its_forks_in_order() -> None:
    done, answers = list[str](), iter([None, ["--name", "one"]])
    standby.when_active(lambda: done.append("at once"))
    standby.hold(forks=lambda seconds: next(answers))
    standby.when_active(lambda: done.append("first"))
    standby.when_active(lambda: done.append("second"))
    assert standby.wait(0.0) == standby._arguments and standby.held() and done == ["at once"]
    assert standby.wait() == ("--name", "one") and not standby.held()
    assert done == ["at once", "first", "second"]
    assert standby.wait() == ("--name", "one"), "it waits for nothing any more"


def test_only_a_spare_inherits_the_memory_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    status = "VmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 300 kB\nRssShmem:\t 100 kB\n"
    (tmp_path / "77/status").write_text(status)
    try:
        assert standby.inherited_bytes(tmp_path) == 0, "it is no spare"
        standby.hold(replaced=77)
        assert standby.inherited_bytes(tmp_path) == 600 * 1024, "without files"
        standby.hold(replaced=78)
        assert standby.inherited_bytes(tmp_path) == 0, "it has died: its memory is free already"
        standby.hold()
        assert standby.inherited_bytes(tmp_path) == 0, "nobody knows which"
    finally:
        standby.call()
