"""Parsers of the syntaxes of tool calls."""
