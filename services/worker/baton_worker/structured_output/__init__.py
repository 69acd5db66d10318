"""Output that must match a grammar: token masks from the log alone, for the rows that want them."""

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
