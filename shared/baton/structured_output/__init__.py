"""Grammars that the gateway and the worker both read."""
