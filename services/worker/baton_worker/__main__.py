"""Run a worker: `python -m baton_worker`, or `baton worker`."""

from __future__ import annotations

from baton.service import main
from baton_worker.config import Config
from baton_worker.service import serve

if __name__ == "__main__":
    main("worker", Config, serve)
