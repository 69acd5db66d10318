"""Operator tools: local supervision, chat, benchmarks, replay, support matrix."""
