"""The layers that interpret a spec. Each knows which checkpoint tensors fill it."""
