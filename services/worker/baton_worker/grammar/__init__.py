"""Output that must match a grammar: token masks from the log alone, for the rows that want them."""

from __future__ import annotations

from baton.registry import Registry

GRAMMARS = Registry(
    "grammars",
    {
        "llguidance": "baton_worker.grammar.guidance:Guidance",
        "xgrammar": "baton_worker.grammar.xgrammar:XGrammar",
    },
)
"""Engines by name. A package adds one through the entry-point group `baton.grammars`; the contract
is `baton_worker.grammar.constraints.Engine`."""
