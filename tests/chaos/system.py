"""The real services around workers without a model, and the hand that breaks them."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from baton.settings import SERVICES, environment
from baton_ops.local import TICK_SECONDS, Supervisor

_START_SECONDS = 60.0


class System:
    """Gateway, tokenizer, mm-preprocess and scheduler as processes, and some fake workers.

    Life cycle: a context; `ready` waits for the first answer; `hurt` breaks one process.
    """

    def __init__(
        self, folder: Path, model: str, vocab: int, port: int, workers: int, step_ms: float
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.hurts: Counter[str] = Counter()
        run = folder / "run"
        leash = [sys.executable, "-m", "baton_ops.leash"]
        commands = {s: [*leash, s] for s in SERVICES if s != "worker"}
        fake = [sys.executable, "-m", "tests.fakes.worker", "--vocab-size", str(vocab)]
        fake += ["--step-ms", str(step_ms), "--model-name", "chaos", "--max-rows", "128"]
        commands |= {f"worker-{n}": [*fake, "--name", f"w{n}"] for n in range(workers)}
        given = {
            "BATON_MODEL": model,
            "BATON_SERVED_MODEL_NAME": "chaos",
            "BATON_RUN_DIR": str(run),
            "BATON_GATEWAY_PORT": str(port),
            "BATON_SCHEDULER_MAX_LOSSES": "1000",
            "BATON_LOG_LEVEL": "error",
        }
        self._supervisor = Supervisor(commands, {**environment(), **given}, 5.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._supervisor.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._supervisor.kill()

    def _watch(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            self._supervisor.tick()

    def ready(self) -> None:
        """Wait until everything answers."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError("the system does not become ready")

    def hurt(self, chance: random.Random) -> str:
        """Kill any process with SIGKILL, or stop it for up to three seconds."""
        name = chance.choice(sorted(self._supervisor.children))
        process = self._supervisor.children[name].process
        if process is None:
            return ""
        kind = name.partition("-")[0] if name.startswith("worker") else name
        if chance.random() < 0.7:
            process.kill()
            self.hurts[f"kill {kind}"] += 1
            return f"kill -9 {name}"
        seconds = chance.uniform(0.2, 3.0)
        os.kill(process.pid, signal.SIGSTOP)
        threading.Timer(seconds, _go_on, (process.pid,)).start()
        self.hurts[f"stop {kind}"] += 1
        return f"stop {name} for {seconds:.1f} s"

    def leaked(self) -> int:
        """Pages that are held although nothing runs; waits for what has just ended."""
        held = -1
        deadline = time.monotonic() + 20
        while held != 0 and time.monotonic() < deadline:
            try:
                workers = httpx.get(f"{self.url}/fleet", timeout=5).json()["workers"]
            except (httpx.TransportError, KeyError):
                workers = []
            held = sum(w["pages_total"] - w["pages_free"] for w in workers) if workers else -1
            time.sleep(0.2)
        return held


def _go_on(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:  # It was killed meanwhile.
        return
