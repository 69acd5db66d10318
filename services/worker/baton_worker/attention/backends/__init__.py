"""Attention backends: the rows of `attention.BACKENDS`, and what several of them share."""
