from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from baton.errors import SettingsError
from baton.registry import Registry
from baton.settings import (
    SERVICES,
    Settings,
    change_environment,
    check_names,
    config_classes,
    default_environment,
    env_prefix,
    environment,
    variables,
)

COLOURS = Registry("colours", {"red": "operator:add", "green": "operator:sub"})


class Config(Settings, prefix="scheduler"):
    budget: int = 5
    """How much."""
    fast: bool = True
    colour: Annotated[str, COLOURS] = "red"
    sizes: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("BATON_"):
            monkeypatch.delenv(name)


def test_flag_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.settings.config_classes", lambda: {"scheduler": Config})
    assert Config.load().budget == 5
    monkeypatch.setenv("BATON_SCHEDULER_BUDGET", "6")
    assert Config.load().budget == 6
    assert Config.load(["--budget", "7", "--no-fast"]).budget == 7
    assert Config.load(["--no-fast"]).fast is False


def test_common_settings_can_be_set_for_all_or_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_LOG_LEVEL", "error")
    assert Config.load().log_level == "error"
    monkeypatch.setenv("BATON_SCHEDULER_LOG_LEVEL", "debug")
    assert Config.load().log_level == "debug"


def test_a_bad_value_names_its_flag() -> None:
    with pytest.raises(SettingsError, match="--budget"):
        Config.load(["--budget", "many"])
    with pytest.raises(SettingsError, match="--shutdown-timeout: Input should be a finite number"):
        Config.load(["--shutdown-timeout", "inf"])


@pytest.mark.parametrize("url", ["nope", "http://redis:6379", "redis://redis:port"])
def test_a_url_that_redis_does_not_read_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^--redis-url: "):
        Settings.load(["--redis-url", url])


def test_a_bad_choice_lists_the_good_ones() -> None:
    with pytest.raises(SettingsError, match="red, green"):
        Config.load(["--colour", "gren"])


def test_a_list_has_one_sentence_however_many_entries_are_wrong() -> None:
    with pytest.raises(SettingsError) as caught:
        Config.load(["--sizes", "a,b"])
    assert caught.value.message.splitlines() == [
        "--sizes: Input should be a valid integer, unable to parse string as an integer (got 'a')"
    ]


def test_an_unknown_variable_stops_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="Did you mean BATON_MODEL"):
        check_names({"BATON_MODLE": "x"})
    check_names({"BATON_MODEL": "x", "BATON_WORKER_MODEL": "y", "PATH": "/", "BATON_TEST_X": ""})


def test_a_library_default_gives_way_to_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_LIBRARY", "x")
    monkeypatch.delenv("SOME_LIBRARY")
    default_environment("SOME_LIBRARY", "1")
    default_environment("SOME_LIBRARY", "2")
    assert environment()["SOME_LIBRARY"] == "1"
    change_environment({"SOME_LIBRARY": None, "OTHER_LIBRARY": None})
    assert "SOME_LIBRARY" not in environment()
    change_environment({"SOME_LIBRARY": "3"})
    assert environment()["SOME_LIBRARY"] == "3"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().budget = 9


def test_every_service_has_a_config_whose_fields_are_described() -> None:
    classes = config_classes()
    assert tuple(classes) == SERVICES
    for service, cls in classes.items():
        assert cls.prefix == service
        for name, variable in variables(cls):
            assert variable.startswith(env_prefix(service))
            assert cls.model_fields[name].description, f"{service}.{name} has no docstring"


def test_help_shows_values_and_defaults_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Config.load(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: baton scheduler [flags]")
    assert "  --colour {red,green}" in text and "How much. (default: 5)" in text
    assert "--fast / --no-fast" in text and "network:" in text
    assert "--scheduler-address" not in text
    with pytest.raises(SystemExit):
        Config.load(["--help-all"])
    assert "--scheduler-address TEXT (advanced)" in capsys.readouterr().out


def test_an_unknown_flag_is_one_sentence_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match=r"^Unknown flag --budgt\. Did you mean --budget\?$"):
        Config.load(["--budgt", "3"])
