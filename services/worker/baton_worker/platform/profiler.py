"""Profiles of a worker's steps, between two requests of an operator."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from baton.logs import logger
from baton.process.watchdog import pulse
from baton_worker.platform.profiler_config import ProfilerConfig

OFF = "The workers write no profiles: start them with --profiler-config."
log = logger(__name__)


class Profiler:
    """Profiles the thread that calls it, one profile at a time.

    `start` and `stop` return why they cannot, or nothing.

    Args:
        settings: None if no profiles are written.
        name: the worker's, in the names of files.
    """

    def __init__(self, settings: ProfilerConfig | None, name: str) -> None:
        self._settings, self._name = settings, name
        self._trace: profile | None = None
        self._running = False
        self._steps = 0

    def start(self) -> str:
        """Begin a profile."""
        settings = self._settings
        if settings is None:
            return OFF
        if self._running:
            return "A profile is being recorded already: end it with /stop_profile."
        if settings.profiler == "cuda":
            if not torch.cuda.is_available():
                return "Profiler 'cuda' needs a GPU: use 'torch'."
            torch.cuda.profiler.start()
        else:
            self._trace = _trace(settings)
            self._trace.start()
        self._running, self._steps = True, 0
        log.info("a profile begins")
        return ""

    def step(self) -> None:
        """Count a step; after the last one allowed the profile ends."""
        if not self._running:
            return
        self._steps += 1
        if self._settings is not None and self._steps == self._settings.max_iterations:
            self.stop()

    def stop(self) -> str:
        """End the profile, and write its trace."""
        if self._settings is None:
            return OFF
        if not self._running:
            return "No profile is being recorded: begin one with /start_profile."
        self._running = False
        if self._trace is None:
            torch.cuda.profiler.stop()
            return ""
        trace, self._trace = self._trace, None
        with pulse.beating():
            trace.stop()
            return self._write(trace, self._settings)

    def _write(self, trace: profile, settings: ProfilerConfig) -> str:
        ending = "pt.trace.json" + ".gz" * settings.torch_profiler_use_gzip
        path = Path(settings.torch_profiler_dir) / f"{self._name}.{time.time_ns()}.{ending}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            trace.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            log.warning("no profile is written: %s", error)
            return f"The profile cannot be written to {path}: {error}."
        log.info("profile of %d steps: %s", self._steps, path)
        return ""


def _trace(settings: ProfilerConfig) -> profile:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(
        activities=activities,
        with_stack=settings.torch_profiler_with_stack,
        record_shapes=settings.torch_profiler_record_shapes,
        profile_memory=settings.torch_profiler_with_memory,
        with_flops=settings.torch_profiler_with_flops,
    )
