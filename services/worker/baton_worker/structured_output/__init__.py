"""Structured output: token masks of rows with a grammar, computed from the token log."""

from __future__ import annotations

from baton.registry import Registry

GRAMMARS = Registry(
    "grammars",
    {
        "llguidance": "baton_worker.structured_output.llguidance:Guidance",
        "xgrammar": "baton_worker.structured_output.xgrammar:XGrammar",
    },
)
"""Engines by name. A package adds one through the entry-point group `baton.grammars`; the contract
is `baton_worker.structured_output.matcher.GrammarEngine`."""
