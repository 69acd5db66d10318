"""Which of the architectures in docs/features.json the worker's tables name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

FEATURES = Path(__file__).parents[2] / "docs" / "features.json"


def registered() -> list[str]:
    """Titles of rows, as far as a config that names them would be served by a spec."""
    from baton_worker.checkpoint.task import is_listed

    groups = json.loads(FEATURES.read_text(encoding="utf-8"))["groups"]
    titles = [title for group in groups for row, title in group["rows"].items() if "." not in row]
    return sorted(t for t in titles if is_listed(SimpleNamespace(architectures=[t])))
