from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_ops.bench.serve import Bench
from baton_ops.commands.smoke import Smoke


def test_a_url_has_its_protocol() -> None:
    assert Bench.load(["--url", "https://host:1/x"]).url == "https://host:1/x"
    assert Bench.load(["--url", ""]).url == ""
    for load in (lambda: Bench.load(["--url", "host:8000"]), lambda: Smoke.load(["host"])):
        with pytest.raises(SettingsError, match="--url: a URL begins with http://"):
            load()
