"""SUPPORT.md, written from test results."""
