"""The glossary names every wire message, and the settings page has every setting."""

from __future__ import annotations

import re
from pathlib import Path

from baton import protocol
from baton.protocol import Message
from baton.settings import config_classes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_every_message_is_in_the_glossary() -> None:
    page = (DOCS / "glossary.md").read_text(encoding="utf-8").partition("## Messages")[2]
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    kinds = [kind for kind in vars(protocol).values() if isinstance(kind, type)]
    assert rows == {k.__name__ for k in kinds if issubclass(k, Message) and k is not Message}


def test_every_flag_is_on_the_settings_page() -> None:
    page = (DOCS / "operations/settings.md").read_text(encoding="utf-8")
    (included,) = re.findall(r'^--8<-- "(.+)"$', page, re.MULTILINE)
    text = (ROOT / included).read_text(encoding="utf-8")
    flags = {
        "--" + name.replace("_", "-")
        for config in config_classes().values()
        for name in config.model_fields
    }
    missing = {flag for flag in flags if f"`{flag}`" not in text and f"`{flag} /" not in text}
    assert flags and not missing
