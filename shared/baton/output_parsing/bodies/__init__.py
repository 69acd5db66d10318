"""Readers of the syntaxes in which models write tool calls."""
