"""Registry of grammar engines and their required packages."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton.protocol import Grammar
from baton.structured_output import engines
from baton.structured_output.engines import TRIALS, require


@pytest.mark.parametrize("name", TRIALS.names())
def test_every_engine_tries_grammars(name: str) -> None:
    require(name)
    problem = TRIALS.load(name)
    assert problem(Grammar("json_object", "")) is None
    assert problem(Grammar("regex", "(")) is not None


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    require("llguidance")
    with pytest.raises(SettingsError, match=r"xgrammar and torch.*baton-serve\[xgrammar\].*llgu"):
        require("xgrammar")
