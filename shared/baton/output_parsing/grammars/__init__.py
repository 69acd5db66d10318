"""Grammars of tool calls."""
