"""Grammars of tool calls: what a model may write where a request demands a call."""
