"""Names of languages."""

from __future__ import annotations

from baton_gateway.speech.languages import language_name


def test_codes_become_names() -> None:
    assert [language_name(code) for code in ("en", "yue", "xx")] == ["english", "cantonese", "xx"]
