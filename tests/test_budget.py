"""How many cases each folder of tests may have: a new sweep is one bounded loop, not a thousand
cases. Counted, not timed, so that the check is the same on every machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
BUDGET = {
    "gateway": 2400,
    "gpu": 34,
    "mm_preprocess": 330,
    "ops": 490,
    "scheduler": 750,
    "shared": 730,
    "system": 300,
    "tokenizer": 460,
    "worker/attention": 900,
    "worker/checkpoint": 550,
    "worker/kernels": 1300,
    "worker/layers": 710,
    "worker/models": 1830,
    "worker": 2030,
}
"""Most cases of a folder; `worker` is what no other row of it counts."""


def folder(path: Path) -> str:
    """The row of `BUDGET` that counts a test file; "" for files beside this one."""
    parts = path.relative_to(ROOT).parts[:-1]
    two = "/".join(parts[:2])
    return two if two in BUDGET else parts[0] if parts else ""


def test_every_folder_keeps_its_budget(request: pytest.FixtureRequest) -> None:
    counts = Counter(folder(item.path) for item in request.session.items)
    over = {name: n for name, n in counts.items() if name and n > BUDGET.get(name, 0)}
    assert not over, "share a loop, or remove cases that prove nothing new"


def test_files_are_counted_by_their_folder() -> None:
    assert folder(ROOT / "worker/models/test_parity.py") == "worker/models"
    assert folder(ROOT / "worker/engine/test_engine.py") == "worker"
    assert folder(ROOT / "scheduler/kv/test_prefix_cache.py") == "scheduler"
    assert folder(Path(__file__)) == ""
