"""Weights that change while a model serves: receive them, load them beside those in use."""
