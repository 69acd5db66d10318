"""Reads what a model writes into reasoning, content and tool calls."""
