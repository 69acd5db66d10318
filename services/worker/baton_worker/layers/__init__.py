"""Layers that implement a spec. Each declares the checkpoint tensors that fill it."""
