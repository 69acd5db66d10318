"""A model that sleeps: the next request wakes it, waits, and is answered as ever."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.served_system import Served, until
from tests.support.system.running_system import complete
from tests.support.system.streams import busy

pytestmark = [pytest.mark.slow, pytest.mark.row("F19.05", "F19.06")]
FLAGS = ("--worker.dtype", "float32", "--worker.threads", "1", "--worker.max-kv-bytes", "67108864")


@pytest.mark.row("F19.04")
def test_requests_wake_what_sleeps(stories: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    profiler = json.dumps({"torch_profiler_dir": str(traces), "torch_profiler_with_stack": False})
    served = Served(tmp_path, stories, *FLAGS, "--profiler-config", profiler)
    try:
        url = served.ready().url

        def post(path: str) -> httpx.Response:
            return httpx.post(f"{url}/{path}", timeout=60)

        def asleep() -> bool:
            found: bool = httpx.get(f"{url}/is_sleeping", timeout=60).json()["is_sleeping"]
            return found

        assert post("start_profile").json() == {"status": "profiling"}
        wanted = complete(url).json()["choices"]
        assert post("stop_profile").json() == {"status": "stopped"}
        [trace] = traces.iterdir()
        assert b"aten::" in gzip.decompress(trace.read_bytes()), "the operators of its steps"
        assert post("stop_profile").status_code == 400
        with busy(url, prompt="It was"):
            assert post("sleep").status_code == 409
        until(lambda: served.fleet()["running"] == 0, "it has ended")
        with ThreadPoolExecutor() as pool:
            for level in (1, 2):
                assert post(f"sleep?level={level}").json() == {"is_sleeping": True} and asleep()
                assert httpx.get(f"{url}/health").status_code == 200
                answers = [pool.submit(complete, url) for _ in range(3)]
                assert [a.result().json()["choices"] for a in answers] == [wanted] * 3
                assert not asleep()
                until(lambda: served.fleet()["running"] == 0, "it has ended")
        assert post("sleep?level=2").status_code == 200
        assert post("wake_up?tags=kv_cache").status_code == 409
        assert post("wake_up?tags=weights").json() == {"is_sleeping": True} and asleep()
        assert post("wake_up?tags=kv_cache").json() == {"is_sleeping": False}
        until(lambda: not asleep(), "it is awake")
        assert complete(url).json()["choices"] == wanted
    finally:
        served.close()
