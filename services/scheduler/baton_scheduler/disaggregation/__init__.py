"""Prefill and decode in different workers: handing sequences over."""
