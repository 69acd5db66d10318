"""Generates SUPPORT.md from test results."""
