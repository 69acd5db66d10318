"""The flags in the help of `baton serve`: each once, by its plain name if it has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from baton.settings import Settings, config_classes
from baton_ops.supervisor.flags import table

USAGE = """usage: baton serve [MODEL] [flags]

A setting of one service is also a flag with its name (--worker.max-num-seqs), BATON_* variable and
key of the file of --config. --help-all shows advanced settings too."""


def entries(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Plain flags, and flags with a service if the plain name is ambiguous."""
    flags, seen = table(options), set(options)
    yield from ((name.replace("_", "-"), field) for name, field in options.items())
    for service, cls in config_classes().items():
        for name in set(cls.model_fields) - set(Settings.model_fields):
            kebab = name.replace("_", "-")
            if kebab not in flags:
                yield f"{service}.{kebab}", cls.model_fields[name]
            elif name not in seen:
                seen.add(name)
                yield kebab, cls.model_fields[name]
