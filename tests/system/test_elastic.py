"""Workers change their roles and number under load: no token is lost, doubled or different."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.protocol import Role
from baton_ops.commands.role import Options as RoleOptions
from baton_ops.commands.role import assign
from baton_ops.commands.scale import Options as ScaleOptions
from baton_ops.commands.scale import scale
from tests.support.served_system import PATIENCE, Served, until

pytestmark = pytest.mark.slow
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1")
EXACT += ("--scheduler.local-prefill-max-tokens", "0")  # So that every prompt is handed over.
PROMPT = "Once upon a time there was a little girl who loved to run with her friends. " * 6
ASKED = [{"temperature": 0.9, "seed": seed, "max_tokens": 200} for seed in range(12)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, stories: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("elastic")
    served = Served(folder, stories, *EXACT, "--workers", "2", "--run-dir", "run").ready()
    until(lambda: len(roles(served)) == 2, "everybody is there")
    yield served
    served.close()


@pytest.fixture(scope="module")
def wanted(served: Served) -> list[Any]:
    """What is answered while nothing changes."""
    return [answer(served, fields) for fields in ASKED]


def answer(served: Served, fields: dict[str, Any]) -> Any:
    body = served.complete(prompt=PROMPT, **fields).json()
    return [(c["text"], c["finish_reason"]) for c in body["choices"]]


def roles(served: Served) -> dict[str, str]:
    return {w["name"]: w["role"] for w in served.fleet()["workers"] if w["state"] == "ready"}


@contextmanager
def load(served: Served, wanted: list[Any]) -> Iterator[None]:
    """Four clients that ask without a pause while the body runs; each answer must be the wanted."""
    ended = threading.Event()

    def client(first: int) -> None:
        for fields, expected in islice(cycle(zip(ASKED, wanted, strict=True)), first, None):
            if ended.is_set():
                return
            assert answer(served, fields) == expected

    with ThreadPoolExecutor(4) as clients:
        found = [clients.submit(client, 3 * number) for number in range(4)]
        try:
            yield
        finally:
            ended.set()
        for future in found:
            future.result(timeout=PATIENCE)


def run_dir(served: Served) -> Path:
    return served.log.parent / "run"


def turn(served: Served, worker: str, role: Role) -> None:
    argv = [worker, role, "--run-dir", str(run_dir(served))]
    assert assign(RoleOptions.load(argv)) == ""


def metric(served: Served, name: str) -> float:
    page = httpx.get(f"{served.url}/metrics", timeout=PATIENCE).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def test_roles_that_change_under_load_change_no_token(served: Served, wanted: list[Any]) -> None:
    with load(served, wanted):
        for one, other in (("prefill", "decode"), ("decode", "prefill"), ("both", "both")):
            until(lambda: served.fleet()["running"] > 0, "something runs")
            before = metric(served, "baton_handoffs_total")
            turn(served, "worker-1", one)  # type: ignore[arg-type]
            turn(served, "worker-2", other)  # type: ignore[arg-type]
            now = {"worker-1": one, "worker-2": other}
            until(lambda now=now: roles(served) == now, "the gateway shows it")  # type: ignore[misc]
            if one != other:
                until(
                    lambda before=before: metric(served, "baton_handoffs_total") > before,  # type: ignore[misc]
                    "a prompt is handed over",
                )
    assert "restarting" not in served.log.read_text(), "nobody had to start again"


def test_a_restarted_process_keeps_its_role(served: Served) -> None:
    turn(served, "worker-2", "decode")
    before = served.pids()["worker-2"]
    losses = served.fleet()["worker_losses"]
    os.kill(before, signal.SIGKILL)
    until(lambda: served.fleet()["worker_losses"] > losses, "it is missed")
    until(lambda: roles(served) == {"worker-1": "both", "worker-2": "decode"}, "it is back")
    turn(served, "worker-2", "both")


def test_more_and_fewer_workers_under_load_change_no_token(
    served: Served, wanted: list[Any]
) -> None:
    with load(served, wanted):
        for word in ("both=3", "both=1"):
            argv = [word, "--run-dir", str(run_dir(served))]
            workers = scale(ScaleOptions.load(argv))
            until(lambda now=workers: roles(served) == now, "the gateway shows it")  # type: ignore[misc]
    assert roles(served) == {"worker-1": "both"}
    until(lambda: not {"worker-2", "worker-3"} & served.pids().keys(), "their processes end")


def test_what_an_autoscaler_follows_is_there(served: Served) -> None:
    assert metric(served, "baton_scale_desired_workers") >= 1
    ready = 'baton_scale_ready_workers{role="both"}'
    until(lambda: metric(served, ready) == 1, "it says how many there are")
