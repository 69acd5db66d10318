from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel

from baton.registry import Registry
from baton.setting_groups import setting
from baton.settings_help import page, values


class Knobs(BaseModel):
    colour: Annotated[str, Registry("colour", {"red": "a:b", "green": "a:c"})] = "red"
    """What is seen."""
    dtype: Literal["auto", "float32"] = setting("auto", "model")
    folder: Path | None = setting(None, "model")
    deep: int = setting(2, "memory", advanced=True)
    fast: bool = setting(True, "batching")


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
