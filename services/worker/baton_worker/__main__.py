"""Run a worker: `python -m baton_worker`, or `baton worker`."""

from __future__ import annotations

from baton.settings import default_environment

if __name__ == "__main__":
    # OpenMP threads spin between two parallel regions, by default for minutes. Where the other
    # services share the cores that takes the processor away from the thread that is waited for:
    # a step becomes several times slower. Most products of a step share their loops without OpenMP
    # (kernels/cpu/team.h); for the rest some ten microseconds do. Read once, when torch is imported
    # below.
    default_environment("GOMP_SPINCOUNT", "1000")
    # NumPy multiplies no matrices here: it needs no threads, which a process could not be forked
    # with (`baton.process.fork_server`).
    default_environment("OPENBLAS_NUM_THREADS", "1")

    from baton.process.lifecycle import main
    from baton_worker.config import Config
    from baton_worker.service import serve

    main("worker", Config, serve)
