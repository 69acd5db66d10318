"""Speculation in the engine: what drafts, what steps of it cost, which drafts hold."""
