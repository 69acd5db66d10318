from __future__ import annotations

import operator
from importlib.metadata import EntryPoint

import pytest

from baton.errors import SettingsError
from baton.registry import Registry


def test_targets_are_imported_on_demand() -> None:
    registry = Registry("things", {"add": "operator:add", "ghost": "no_such_module:x"})
    assert registry.names() == ("add", "ghost")
    assert registry.load("add") is operator.add
    assert "add" in registry and "sub" not in registry
    assert registry.help() == "add | ghost"
    with pytest.raises(ModuleNotFoundError):
        registry.load("ghost")


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"Known: fcfs, fair\. Did you mean 'fcfs'\?"):
        Registry("order", {"fcfs": "a:b", "fair": "a:c"}).load("fcsf")


def test_entry_points_extend_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(group: str) -> list[EntryPoint]:
        return [EntryPoint("mul", "operator:mul", group)]

    monkeypatch.setattr("baton.registry.entry_points", found)
    assert Registry("things", {}).load("mul") is operator.mul
