"""Requests that are not run: their tokens, prompts and estimated cost."""
