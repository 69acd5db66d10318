"""Tensors: models, KV pages, attention, sampling. Executes plans and decides nothing."""
