"""`python -m baton_scheduler`."""

from __future__ import annotations

from baton.process.lifecycle import main
from baton_scheduler.config import Config
from baton_scheduler.service import serve

if __name__ == "__main__":
    main("scheduler", Config, serve)
