"""Killable child processes that decode untrusted files."""
