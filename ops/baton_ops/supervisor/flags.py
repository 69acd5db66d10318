"""The command line of `baton serve`: plain flags, flags of one service, flags of vLLM, and a
file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from baton.errors import SettingsError
from baton.settings import Settings, config_classes, env_prefix, trait
from baton.settings_file import mapping, text, unknown
from baton_ops.supervisor.vllm_flags import TABLE, holds_negated

SEVERAL = {"--api-key": "gateway.api-key", "--lora-modules": "worker.lora-modules"}
"""Flags with several words, and their settings; here the words are separated by commas."""
ROLES = ("prefill", "decode", "encode")
"""`--encode 2` is short for `--encode-workers 2`."""
_TRUE = ("1", "true", "yes", "on", "t", "y")


class Flag(NamedTuple):
    """One flag, without its dashes."""

    targets: tuple[str, ...]
    """The setting: "workers", or "worker.max-num-seqs"."""
    boolean: bool


def table(options: Mapping[str, Any]) -> dict[str, Flag]:
    """Every flag by its name: those of `baton serve` itself, as fields, and of all services.

    A setting of one service has a plain flag, and so has one shared by several services.
    """
    flags: dict[str, Flag] = {"revision": Flag(("revision",), False)}
    plain: dict[str, list[tuple[str, Any]]] = {}
    for service, cls in config_classes().items():
        for name in set(cls.model_fields) - set(Settings.model_fields):
            field, kebab = cls.model_fields[name], name.replace("_", "-")
            target = f"{service}.{kebab}"
            flags[target] = Flag((target,), field.annotation is bool)
            plain.setdefault(kebab, []).append((target, field))
    for kebab, services_of_flag in plain.items():
        if len(services_of_flag) == 1 or all(
            trait(field, "shared") for _, field in services_of_flag
        ):
            targets = tuple(target for target, _ in services_of_flag)
            flags[kebab] = Flag(targets, services_of_flag[0][1].annotation is bool)
    for name, field in options.items():
        kebab = name.replace("_", "-")
        flags[kebab] = Flag((kebab,), field.annotation is bool)
    for role in ROLES:
        flags[role] = flags[f"{role}-workers"]
    return flags


class Reader:
    """Collects settings, each once."""

    def __init__(self, flags: Mapping[str, Flag]) -> None:
        self.flags = flags
        self.settings: dict[str, tuple[str, str]] = {}
        """Setting -> flag and value."""

    def read(self, argv: Sequence[str]) -> None:
        """Parse a command line. Raises `SettingsError` for unknown flags."""
        words = list(argv)
        last = ""
        while words:
            word = words.pop(0)
            if word.startswith("-"):
                last = self._flag(word, words)
            else:
                self._word(word, last)

    def _word(self, word: str, last: str) -> None:
        """The model, or, after it, another value of a flag with several values."""
        target = SEVERAL.get(last, "")
        if "model" not in self.settings:
            self.settings["model"] = ("MODEL", word)
        elif target:
            flag, values = self.settings[target]
            self.settings[target] = (flag, f"{values},{word}")
        else:
            model = self.settings["model"][1]
            raise SettingsError(f"'{word}' follows no flag, and the model is '{model}' already.")

    def _flag(self, word: str, words: list[str]) -> str:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag.startswith("-O") and flag != "-O":
            flag, equals, value = "-O", "=", word[2:]
        base = flag if flag in TABLE else flag.partition(".")[0]
        if base in TABLE and flag[2:] not in self.flags:
            row = TABLE[base]
            value = "" if row.switch else value if equals else _next(flag, words)
            if (ours := row.become(value)) is not None:
                self.say(flag, *ours)
            return flag
        if flag[2:] not in self.flags and holds_negated(flag):
            return flag
        name, negative = self._resolve(flag)
        if self.flags[name].boolean:
            value = str(value.lower() in _TRUE if equals else not negative)
        elif not equals:
            value = _next(flag, words)
        self.say(flag, name, value)
        return flag

    def _resolve(self, flag: str) -> tuple[str, bool]:
        """The name of a flag, and whether it is negated."""
        name = flag[2:] if flag.startswith("--") else flag
        positive = name.removeprefix("no-")
        if name in self.flags:
            return name, False
        if positive in self.flags and self.flags[positive].boolean:
            return positive, True
        several = [known for known in self.flags if known.endswith(f".{positive}")]
        if several:
            raise SettingsError(f"{flag} is ambiguous: --{' or --'.join(sorted(several))}.")
        near = difflib.get_close_matches(name, self.flags, n=1)
        hint = f" Did you mean --{near[0]}?" if near else ""
        raise SettingsError(f"Unknown flag {flag}.{hint}")

    def say(self, flag: str, name: str, value: str) -> None:
        """Add one flag with its value. Raises `SettingsError` if another flag contradicts it."""
        for target in self.flags[name].targets:
            earlier_flag, earlier_value = self.settings.get(target, (flag, value))
            if earlier_flag != flag and earlier_value != value:
                raise SettingsError(
                    f"{earlier_flag} {earlier_value} contradicts {flag} {value}: give one of them."
                )
            self.settings[target] = (flag, value)

    def as_given(self, message: str) -> str:
        """An error of the settings, one line each, with the flags that the user gave."""
        for target, (flag, _) in self.settings.items():
            message = re.sub(rf"^--{re.escape(target)}(?=: )", flag, message, flags=re.MULTILINE)
        return message

    def words(self) -> list[str]:
        """The settings as a command line of full names."""
        values = {target: value for target, (_, value) in self.settings.items()}
        if revision := values.pop("revision", ""):
            values["model"] = _at(values.get("model", ""), revision)
        return [w for target, value in values.items() for w in self._words(target, value)]

    def _words(self, target: str, value: str) -> list[str]:
        if target == "model":
            return [value]
        if self.flags[target].boolean:
            return [f"--{target}" if value.lower() in _TRUE else f"--no-{target}"]
        return [f"--{target}={value}"]


def _at(model: str, revision: str) -> str:
    """A hub model at a revision. Raises `SettingsError` for a model without revisions."""
    if "/" not in model or "@" in model or model.startswith(("/", ".", "pypi:")):
        raise SettingsError(f"--revision {revision}: write the model as org/name, and no @ in it.")
    return f"{model}@{revision}"


def _next(flag: str, words: list[str]) -> str:
    if not words:
        raise SettingsError(f"{flag} needs a value.")
    return words.pop(0)


def add_file(reader: Reader, data: Mapping[str, Any], environ: Iterable[str]) -> None:
    """Add settings of a file that have neither a flag nor a variable. Raises `SettingsError`."""
    file = Reader(reader.flags)
    sections = {service.replace("-", "_"): service for service in config_classes()}
    for key, value in data.items():
        if key in sections:
            for name, entry in mapping(value, key).items():
                _entry(file, f"{sections[key]}.{name}", entry)
        else:
            _entry(file, key, value)
    variables = set(environ)
    for target, flag_and_value in file.settings.items():
        service, _, name = target.rpartition(".")
        if env_prefix(service) + name.replace("-", "_").upper() not in variables:
            reader.settings.setdefault(target, flag_and_value)


def _entry(file: Reader, key: str, value: Any) -> None:
    name = key.replace("_", "-")
    if name not in file.flags:
        raise unknown(key, [flag.replace("-", "_") for flag in file.flags])
    file.say(f"--config {key}", name, text(value))
