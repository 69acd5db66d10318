from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel
from pydantic_settings import CliPositionalArg

from baton.errors import SettingsError
from baton.registry import Registry
from baton.setting_groups import setting
from baton.settings import Settings
from baton.settings_help import page, values


class Knobs(BaseModel):
    colour: Annotated[str, Registry("colour", {"red": "a:b", "green": "a:c"})] = "red"
    """What is seen."""
    dtype: Literal["auto", "float32"] = setting("auto", "model")
    folder: Path | None = setting(None, "model")
    deep: int = setting(2, "memory", advanced=True)
    fast: bool = setting(True, "batching")


class Tool(Settings, prefix="tool"):
    """A command."""

    file: CliPositionalArg[Path]
    """What is read."""
    url: CliPositionalArg[str] = "http://here"
    size: int = 1
    model: str = "m"
    """Its own, not the common one."""


def test_values_are_choices_or_a_kind() -> None:
    shown = {name: values(field) for name, field in Knobs.model_fields.items()}
    assert shown["colour"] == "{red,green}" and shown["dtype"] == "{auto,float32}"
    assert (shown["folder"], shown["deep"], shown["fast"]) == ("PATH", "N", "")


def test_groups_are_in_order_and_advanced_ones_are_kept_back() -> None:
    text = page("usage: x", Knobs.model_fields.items(), everything=False)
    heads = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads == ["options:", "model:", "batching:"]
    assert "--fast / --no-fast\n      (default: on)" in text and "--deep" not in text
    assert "--deep N (advanced)" in page("usage: x", Knobs.model_fields.items(), everything=True)


def test_what_is_given_by_its_place_is_no_flag() -> None:
    text = Tool.help(everything=False)
    assert text.startswith("usage: baton tool FILE [URL] [flags]")
    assert "  FILE\n      What is read." in text and "--size N" in text
    assert "--file" not in text and "--url" not in text
    assert "Its own, not the common one." in text and "--redis-url" not in text
    with pytest.raises(SettingsError, match=r"no flag --url: baton tool FILE \[URL\] \[flags\]"):
        Tool.load(["x", "--url", "y"])
    with pytest.raises(SettingsError, match=r"Unknown flag --ulr=y\.$"):
        Tool.load(["x", "--ulr=y"])
    with pytest.raises(SettingsError, match=r"^'z' has no place here: baton tool FILE \[URL\]"):
        Tool.load(["x", "y", "z"])
    assert (Tool.load(["x", "y"]).url, Tool.load(["x"]).file) == ("y", Path("x"))
