"""Names that other servers have."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton.registry import Registry
from baton_worker.platform.flag_aliases import FlagAliases

NAMES = FlagAliases("--colour", {"crimson": "red"}, {"infra*": "nobody sees it", "puce": "use red"})


@pytest.mark.parametrize(("name", "ours"), [("Crimson", "red"), ("RED", "red"), ("blue", "blue")])
def test_a_name_is_what_it_is_called_here_in_small_letters(name: str, ours: str) -> None:
    assert NAMES.ours(name) == ours


@pytest.mark.parametrize(
    ("name", "said"), [("Infrared", "infrared: nobody sees it"), ("puce", "puce: use red")]
)
def test_what_is_elsewhere_is_refused_with_what_to_do(name: str, said: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        NAMES.ours(name)
    assert refusal.value.message == f"--colour {said}."


def test_auto_leaves_every_row_and_a_name_one() -> None:
    colours = Registry("colour", {"red": "nobody:red", "blue": "nobody:blue"})
    assert NAMES.candidates("auto", colours) == ("red", "blue")
    assert NAMES.candidates("Crimson", colours) == ("red",)
    with pytest.raises(SettingsError, match=r"Unknown colour 'green'\. Known: red, blue"):
        NAMES.candidates("green", colours)
