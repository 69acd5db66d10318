"""Settings that are lists."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton.setting_lists import listed


@pytest.mark.parametrize("setting", ["a, b", "a,b,", '["a", "b"]', ' ["a","b"]'])
def test_commas_and_json(setting: str) -> None:
    assert listed(setting) == ("a", "b") and listed("") == ()


def test_a_broken_list_is_named() -> None:
    with pytest.raises(SettingsError, match="Cannot read the list"):
        listed('["a"')
