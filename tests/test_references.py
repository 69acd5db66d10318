"""What the documentation names exists: files, flags, variables, metrics, routes and verbs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.__main__ import usage
from baton.settings import SERVICES, Settings, config_classes, env_prefix, variables
from baton_gateway.access.api_keys import OPERATOR_PATHS
from baton_gateway.api import ROUTERS
from baton_ops.supervisor import vllm_flags
from baton_ops.supervisor.flags import table
from baton_ops.supervisor.options import Serve
from tests.support.system.exported_metrics import exported, families

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ops/**/*.md"))
    if path.name not in {"CHANGELOG.md", "SUPPORT.md", "performance.md"}
)
"""Written by hand: what has changed and what was measured may name what is gone."""
SOURCES = ("docs", "ops", "services", "shared", "tests", "tools")
FILE = re.compile(r"`([\w.-]+(?:/[\w.*-]+)*\.(?:py|cpp|h|cu|md|yml|yaml|toml|sh))`")
FLAG = re.compile(r"(?<![\w-])(--[a-z][\w.-]*\w)")
OTHER_FLAGS = {
    # docker compose, kubectl, nsys.
    *("--build", "--wait", "--scale", "--from-file", "--capture-range"),
    # Part of a drawing; a name that was not chosen.
    *("--order", "--common.model"),
    # Of every program; of tools/train_draft_head.py, which declares it in a loop.
    *("--help", "--texts"),
}
PAGES_OF_THE_GATEWAY = ("/docs", "/openapi.json")
"""Routes that belong to no router."""
INTERNAL = {"bad_frame", "bad_model", "bad_plan", "bad_settings", "model_unavailable"}
"""Codes that no client sees, or none that it can do anything about."""
ROUTE = re.compile(r"`(?:(?:GET|POST|DELETE|WebSocket)(?:`, `DELETE)? )?(/[a-z][\w/{}.]*)`")
DEFAULT = re.compile(r"`([a-z]+(?:_[a-z]+)+)` \((\d[\d,]*)\)")


def lines() -> Iterator[tuple[str, str]]:
    """("docs/index.md:3", its text) of every line."""
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            yield f"{page.relative_to(ROOT)}:{number}", line


def missing(pattern: re.Pattern[str], known: set[str], prefix: str = "") -> list[str]:
    """Where a page names what is not known."""
    return [
        f"{where}: {name}"
        for where, line in lines()
        for name in pattern.findall(line)
        if name.startswith(prefix) and name not in known
    ]


def tails() -> set[str]:
    """Every file of the repository, each under all ends of its path."""
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    parts = [path.relative_to(ROOT).parts for path in paths]
    return {"/".join(part[start:]) for part in parts for start in range(len(part))}


def test_every_file_exists() -> None:
    known = tails()
    patterns = {"families/*.py", "layers/*.py"}
    foreign = {"Python.h"}
    assert not missing(FILE, known | patterns | foreign)


def flags() -> set[str]:
    """Flags of `baton serve` and of vLLM that it reads, and all that a program here declares."""
    code = [path.read_text() for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    tools = "".join(text for text in code if re.search(r"\(Settings\b|\bsys\.argv\b", text))
    fields = {name.replace("_", "-") for name in re.findall(r"^    (\w+): ", tools, re.MULTILINE)}
    signed = {
        f"--{sign}{name}" for name in {*table(Serve._plain()), *fields} for sign in ("", "no-")
    }
    parsed = set(re.findall(r'add_argument\((?:\s*"[^"]+",)*\s*"(--[\w-]+)"', "".join(code)))
    return signed | parsed | set(vllm_flags.TABLE) | OTHER_FLAGS


def test_every_flag_exists() -> None:
    assert not missing(FLAG, flags())


def test_every_variable_exists() -> None:
    classes = config_classes()
    known = {name for cls in (Settings, *classes.values()) for _, name in variables(cls)}
    known |= {env_prefix(s) + name.upper() for s in SERVICES for name in Settings.model_fields}
    pattern = re.compile(r"\b(BATON_(?!TEST_|TORCH_|COMPOSE_)[A-Z_]+[A-Z])\b")
    assert not missing(pattern, known)


def test_every_metric_exists() -> None:
    packages = {f"baton_{service.replace('-', '_')}" for service in SERVICES} | {"baton_ops"}
    assert not missing(
        re.compile(r"\b(baton_[a-z_]+)\b(?![.])"), exported() | families() | packages
    )


def test_every_route_exists() -> None:
    paths = [*PAGES_OF_THE_GATEWAY, *(route.path for router in ROUTERS for route in router.routes)]
    known = {re.sub(r"\{\w+(:\w+)?\}", "{}", path) for path in paths}
    pages = [line for where, line in lines() if where.startswith("docs/api/endpoints.md")]
    named = {re.sub(r"\{\w+\}", "{}", name) for line in pages for name in ROUTE.findall(line)}
    assert not named - known
    assert not known - named - {"/v1/responses/compact"}, "it says by its error what to do"


def test_every_error_code_is_listed() -> None:
    pattern = r'(?:\bcode=|\bcode = |Failed\(handle, |_refuse\(\d+, )"([a-z_]+)"'
    code = "".join(p.read_text() for f in ("services", "shared") for p in (ROOT / f).rglob("*.py"))
    listed = "".join(line for where, line in lines() if where.startswith("docs/api/"))
    named = {name for name in re.findall(pattern, code) if f"`{name}`" not in listed}
    assert named == INTERNAL


def test_the_routes_of_operators_are_listed() -> None:
    pages = [line for where, line in lines() if where.startswith("docs/operations/security.md")]
    assert {name for line in pages for name in ROUTE.findall(line)} >= OPERATOR_PATHS


def test_every_verb_exists() -> None:
    verbs = set(re.findall(r"^  ([a-z-]+) ", usage(), re.MULTILINE))
    assert not missing(re.compile(r"`baton ([a-z][a-z-]+)[ `]"), verbs)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert not missing(re.compile(r"(?:`|^)make ([a-z-]+)"), targets)


@pytest.mark.parametrize("service", SERVICES)
def test_every_default_is_as_it_is_said(service: str) -> None:
    fields = config_classes()[service].model_fields
    wrong = [
        f"{where}: {name} is {fields[name].default}"
        for where, line in lines()
        for name, value in DEFAULT.findall(line)
        if name in fields and float(value.replace(",", "")) != float(fields[name].default)
    ]
    assert not wrong
