"""Run a follower: `python -m baton_worker.follower`, started by its leader; commands on stdin."""

from __future__ import annotations

from baton.settings import default_environment

if __name__ == "__main__":
    default_environment("GOMP_SPINCOUNT", "1000")  # See baton_worker/__main__.py.

    from baton_worker.follower.follower import main

    main()
