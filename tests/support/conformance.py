"""llm-comply, a conformance suite of three APIs, as its users point it at a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import llm_comply
from llm_comply import runner, test_case
from llm_comply.config import ComplianceConfig
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests

SPECS = {
    "open-responses": "openresponses.json",
    "openai-chat": "openai_chat.json",
    "anthropic": "anthropic.json",
}
"""Format to the document that answers are validated against."""
_SKIPPED = {"reasoning-summary", "chat-reasoning-summary", "anth-thinking-display"}
"""They want a model of OpenAI's or Anthropic's by its name."""


def failures(
    url: str, model: str, kind: str, *, images: bool, before: Callable[[str], None] | None = None
) -> list[str]:
    """What one format's tests complain about.

    Args:
        images: the tests that send a picture, or all others.
        before: called with the id of each test before it runs.
    """
    config = ComplianceConfig(base_url=f"{url}/v1", api_key="none", model=model, timeout=60)
    tests = [test for test in get_tests(kind) if images == ("image" in test.id)]
    assert tests, f"{kind} has no such test"
    spec = Path(llm_comply.__file__).parent / "specs" / SPECS[kind]
    suite = runner.TestRunner(config, tests, SpecLoader(str(spec)))
    found = []
    for test in tests:
        if before is not None:
            before(test.id)
        found += _failures(suite, test)
    return found


def _failures(suite: runner.TestRunner, test: test_case.TestCase) -> list[str]:
    result = suite.run_one(test)
    expected = "skipped" if test.id in _SKIPPED else "passed"
    right = result.status.value == expected
    return [] if right else [f"{test.id}: {result.status.value}: {result.errors}"]
