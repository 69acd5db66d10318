"""Disaggregated prefill and decode: handoff of sequences between workers."""
